"""A script for Horovod as its TensorFlow 2 examples are: a gradient tape, then Keras; knows nothing of rueda."""

import sys

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images = tf.random.stateless_uniform([256, 8], [hvd.rank(), 0])
labels = tf.cast(tf.reduce_sum(images[:, :4], 1) > tf.reduce_sum(images[:, 4:], 1), tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(256).batch(32)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2, activation="softmax")]
)
loss_of = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.01 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss_of(labels, probs)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


losses = []
for batch, (x, y) in enumerate(dataset.take(60)):
    losses.append(float(training_step(x, y, batch == 0)))
if hvd.rank() == 0:
    checkpoint.save(sys.argv[1])
    print("tape learns", losses[-1] < losses[0])
same = hvd.allgather_object([each.numpy().tobytes() for each in model.trainable_variables])
print("tape agrees", all(each == same[0] for each in same))

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2, activation="softmax")]
)
scaled_lr = 0.01 * hvd_keras.size()
opt = hvd_keras.DistributedOptimizer(
    tf.optimizers.Adam(scaled_lr), backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
history = model.fit(
    dataset,
    steps_per_epoch=20,
    epochs=3,
    verbose=0,
    callbacks=[
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=0),
    ],
).history
same = hvd.allgather_object([each.tobytes() for each in model.get_weights()] + [history["loss"]])
print("keras agrees", all(each == same[0] for each in same))
if hvd.rank() == 0:
    print("keras learns", history["loss"][-1] < history["loss"][0])
