"""Elastic jobs of Keras, TensorFlow and JAX: a rank is lost, the others go on, another comes, and no step is lost or made twice.

All ranks have the same data, so that averages are exact whatever their number, and the result is that of a job without faults.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
from worlds import ruedarun

BEGIN = """
import os, signal, time
import numpy as np
from rueda._runtime import runtime

STEPS, EPOCHS = 4, 4
KILLED = 0 if os.environ["HOW"] == "killed first" else 6  # before anything was committed
rows = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
sums = rows.sum(1, keepdims=True)


def may_die(step):
    if runtime.epoch.member == 1 and step == KILLED:
        if os.environ["HOW"] == "raises":
            raise RuntimeError("its own")
        os.kill(os.getpid(), signal.SIGKILL)


def await_all(hvd, state):
    "Behind a loss one epoch is made alone; then the others are awaited."
    while hvd.size() < 2 and state.epoch >= 2:
        time.sleep(0.1)  # leaves it the processors
        state.commit()


def end(hvd, step, mine, expected):
    assert step == STEPS * EPOCHS, step
    for each, other in zip(mine, expected):
        np.testing.assert_array_equal(each, other)
    assert all((a == b).all() for each in hvd.allgather_object(mine) for a, b in zip(each, mine))
    print("done", hvd.size(), runtime.epoch.members, flush=True)
    hvd.shutdown()
"""

KERAS = (
    BEGIN
    + """
import keras
import rueda.keras as hvd


class Seeded(keras.layers.Layer):
    "Has a seed of its own, as dropout, and changes nothing."

    def build(self, shape):
        self.seed_generator = keras.random.SeedGenerator(os.getpid())

    def call(self, inputs):
        return inputs + 0 * keras.random.normal(keras.ops.shape(inputs), seed=self.seed_generator)


class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        may_die(STEPS * state.epoch + state.batch)


def make(optimizer):
    keras.utils.set_random_seed(os.getpid())
    layers = [keras.layers.Dense(8, activation="relu"), Seeded(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(optimizer, loss="mse")
    return model


x, y = np.tile(rows, (STEPS, 1)), np.tile(sums, (STEPS, 1))
hvd.init()
model = make(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)))
state = hvd.elastic.KerasState(model, batch=0, epoch=0, start=None)
callbacks = [
    Die(),
    hvd.elastic.CommitStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
]


@hvd.elastic.run
def train(state):
    if state.start is None:
        state.start = model.get_weights()
    await_all(hvd, state)
    epochs = EPOCHS if hvd.size() == 2 else 2  # of one that is alone: to the end of this one
    model.fit(x, y, batch_size=8, shuffle=False, epochs=epochs - state.epoch, callbacks=callbacks, verbose=0)
    if state.epoch < EPOCHS:
        await_all(hvd, state)


train(state)
alone = make(keras.optimizers.SGD(0.01, momentum=0.9))
alone.set_weights(state.start)
alone.fit(x, y, batch_size=8, shuffle=False, epochs=EPOCHS, verbose=0)
end(hvd, int(model.optimizer.iterations.numpy()), model.get_weights(), alone.get_weights())
"""
)

TENSORFLOW = (
    BEGIN
    + """
import horovod.tensorflow as hvd
import tensorflow as tf


class Model:
    def __init__(self, start):
        self.w = tf.Variable(start)
        self.momentum = tf.Variable(tf.zeros_like(start))

    @tf.function
    def step(self, distributed):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows @ self.w - sums) ** 2)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        (grad,) = tape.gradient(loss, [self.w])
        self.momentum.assign(0.9 * self.momentum + grad)
        self.w.assign_sub(0.01 * self.momentum)


hvd.init()
model = Model(tf.random.stateless_normal([4, 1], [os.getpid(), 0]))
state = hvd.elastic.TensorFlowState([model.w, model.momentum], step=0, epoch=0, start=None)


@hvd.elastic.run
def train(state):
    if state.start is None:
        state.start = model.w.numpy()
    while state.step < STEPS * EPOCHS:
        may_die(state.step)
        await_all(hvd, state)
        model.step(True)
        state.step += 1
        state.epoch = state.step // STEPS
        state.commit()


train(state)
alone = Model(tf.constant(state.start))
for _ in range(STEPS * EPOCHS):
    alone.step(False)
end(hvd, state.step, [model.w.numpy()], [alone.w.numpy()])
"""
)

JAX = (
    BEGIN
    + """
import dataclasses
import functools
import jax
import optax
import rueda.jax as hvd

hvd.init()
plain = optax.sgd(0.01, momentum=0.9)
distributed = hvd.DistributedOptimizer(plain)


@functools.partial(jax.jit, static_argnums=2, donate_argnums=(0, 1))
def step(params, opt_state, optimizer):
    grads = jax.grad(lambda w: ((rows @ w["w"] - sums) ** 2).mean())(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state




@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    w: jax.Array
    apply: object = dataclasses.field(metadata={"static": True})  # another object in each process


params = {"w": jax.random.normal(jax.random.key(os.getpid()), (4, 1))}
state = hvd.elastic.JaxState(
    params=params, opt_state=distributed.init(params), model=Model(params["w"] + os.getpid(), lambda x: x), key=jax.random.key(os.getpid()), step=0, epoch=0, start=None
)


@hvd.elastic.run
def train(state):
    if state.start is None:
        state.start = np.array(state.params["w"])
    while state.step < STEPS * EPOCHS:
        may_die(state.step)
        await_all(hvd, state)
        state.params, state.opt_state = step(state.params, state.opt_state, distributed)
        state.step += 1
        state.epoch = state.step // STEPS
        state.commit()


train(state)
params = {"w": jax.numpy.array(state.start)}
opt_state = plain.init(params)
for _ in range(STEPS * EPOCHS):
    params, opt_state = step(params, opt_state, plain)
same = [np.array(jax.random.key_data(state.key)), np.array(state.model.w)]
assert all((a == b).all() for each in hvd.allgather_object(same) for a, b in zip(each, same))
end(hvd, state.step, [np.array(state.params["w"])], [np.array(params["w"])])
"""
)

# As Horovod's tensorflow2_mnist_elastic.py: the tape is distributed, and the optimizer a plain one.
TAPE = (
    BEGIN
    + """
import horovod.tensorflow as hvd
import tensorflow as tf


class Model:
    def __init__(self, start=None):
        self.keras = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        self.optimizer = tf.optimizers.SGD(0.01, momentum=0.9)
        if start is not None:
            self.keras.set_weights(start)

    @tf.function
    def step(self, distributed):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.keras(rows) - sums) ** 2)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, self.keras.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.keras.trainable_variables))


hvd.init()
tf.keras.utils.set_random_seed(os.getpid())
model = Model()
state = hvd.elastic.TensorFlowKerasState(model.keras, model.optimizer, step=0, epoch=0, commits=0, start=None)


@hvd.elastic.run
def train(state):
    if state.start is None:
        state.start = model.keras.get_weights()
    while state.step < STEPS * EPOCHS:
        may_die(state.step)
        await_all(hvd, state)
        model.step(True)
        state.step += 1
        state.commits += 1
        state.epoch = state.step // STEPS
        state.commit()


train(state)
assert state.commits == state.step
alone = Model(state.start)
for _ in range(STEPS * EPOCHS):
    alone.step(False)
end(hvd, state.step, model.keras.get_weights(), alone.keras.get_weights())
"""
)


def jobs():
    """Each way to be lost once, and each framework; all others with --all."""
    slow = pytest.mark.slow
    for name, program, needed, how, marks in (
        ("jax", JAX, ("jax", "optax"), "killed", [slow]),
        ("jax", JAX, ("jax", "optax"), "killed first", []),
        ("jax", JAX, ("jax", "optax"), "raises", [slow]),
        ("tensorflow", TENSORFLOW, ("tensorflow",), "raises", []),
        ("tensorflow", TENSORFLOW, ("tensorflow",), "killed", [slow]),
        ("tensorflow", TAPE, ("tensorflow",), "killed", []),
        ("jax", KERAS, ("keras", "jax"), "killed", []),
        ("jax", KERAS, ("keras", "jax"), "killed first", [slow]),
        ("tensorflow", KERAS, ("keras", "tensorflow"), "killed", [slow]),
        ("torch", KERAS, ("keras", "torch"), "killed", [slow]),
    ):
        missing = [each for each in needed if importlib.util.find_spec(each) is None]
        skip = [pytest.mark.skip(f"no {missing[0]} here")] if missing else []
        env = {"HOW": how, "KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
        yield pytest.param(program, env, id=f"{needed[0]}-{name}-{'tape-' * (program is TAPE)}{how.replace(' ', '-')}", marks=[*marks, *skip])


@pytest.mark.parametrize(("program", "env"), list(jobs()))
def test_a_rank_is_lost_and_another_comes(tmp_path, program, env):
    file = tmp_path / "train.py"
    file.write_text(program)
    command = [ruedarun(), "--horovod", "-np", "2", "--min-np", "1", sys.executable, str(file)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>: done 2 [0, 2]" in done.stdout, done.stdout + done.stderr


EXAMPLE = """
# As Horovod's tensorflow2_keras_mnist_elastic.py: a batch before the state is made, and in the reset callback.
import os, signal, sys
import numpy as np
import horovod.tensorflow.keras as hvd
import tensorflow as tf
from rueda._runtime import runtime  # for the test alone

hvd.init()
x = np.random.default_rng(hvd.rank()).normal(size=(64, 4)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).repeat().batch(8)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(tf.optimizers.Adam(0.001 * hvd.size())))
model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0, enough=False)


def on_state_reset():
    state.model.optimizer.learning_rate.assign(0.001 * hvd.size())
    state.model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)


class Ends(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if state.epoch == 1 and runtime.epoch.member == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state.enough = state.epoch > 2 and hvd.size() == 2

    def on_epoch_end(self, epoch, logs=None):
        if state.enough:
            self.model.stop_training = True


state.register_reset_callbacks([on_state_reset])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    Ends(),
    hvd.elastic.CommitStateCallback(state),
]


@hvd.elastic.run
def train(state):
    state.model.fit(dataset, steps_per_epoch=8 // hvd.size(), epochs=100_000 - state.epoch, callbacks=callbacks, verbose=0)


train(state)
mine = model.get_weights()
assert all((a == b).all() for each in hvd.allgather_object(mine) for a, b in zip(each, mine))
print("done", hvd.size(), runtime.epoch.members, round(float(model.optimizer.learning_rate.numpy()), 4), flush=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no tensorflow here")
def test_keras_as_horovods_example_has_it_on_a_host_that_fails_and_comes_back_after_its_cooldown(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(EXAMPLE)
    hosts = "echo 127.0.0.2:1; echo 127.0.0.3:1"
    command = [sys.executable, "-m", "rueda.compat.horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", hosts]
    command += ["--blacklist-cooldown-range", "1", "2", sys.executable, str(file)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>: done 2 [0, 2] 0.002" in done.stdout, done.stdout + done.stderr
    assert "host 127.0.0.3 is not used for" in done.stderr, done.stderr
