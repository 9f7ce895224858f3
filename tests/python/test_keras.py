"""rueda.keras on every backend of Keras: one world for each, in which everything happens."""

import contextlib
import copy
import importlib.util
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from worlds import launch, results, run_ranks

if importlib.util.find_spec("keras") is None:
    pytest.skip("no Keras here", allow_module_level=True)

BACKENDS = [name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)]
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_keras.py"


def make_model(keras, optimizer, seed, **options):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(optimizer, loss="mse", **options)
    return model


def data(rank, rows=32):
    x = np.random.default_rng(rank).normal(size=(rows, 4)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def bits(variables):
    import keras

    return [keras.ops.convert_to_numpy(each.value).tobytes() for each in variables]


def same_everywhere(hvd, model):
    mine = bits([*model.weights, *model.optimizer.variables])
    return all(each == mine for each in hvd.allgather_object(mine))


def check_values(hvd, keras):
    n, r = hvd.size(), hvd.rank()
    assert hvd.allreduce(keras.ops.ones(3) * r, op=hvd.Sum).tolist() == [n * (n - 1) / 2] * 3
    assert hvd.allreduce(float(r)) == (n - 1) / 2 and hvd.allgather([r]).tolist() == list(range(n))
    assert hvd.broadcast([r, 2 * r], 1).tolist() == [1, 2]
    assert hvd.reducescatter(np.arange(2.0 * n), op=hvd.Sum).tolist() == [2 * r * n, (2 * r + 1) * n]


def check_training(hvd, keras):
    """Two ranks with half of a batch each do what one does with the whole."""
    x, y = data(hvd.rank())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(1),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=2),
    ]
    plain = keras.optimizers.SGD(0.05, momentum=0.9)
    model = make_model(keras, hvd.DistributedOptimizer(plain), hvd.rank())
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    assert same_everywhere(hvd, model)
    losses = history.history["loss"]
    assert losses == hvd.broadcast(losses, 0).tolist() and losses[-1] < losses[0]
    assert history.history["lr"][0] < 0.05 and abs(history.history["lr"][1] - 0.05) < 1e-7
    assert type(plain) is not type(model.optimizer) and not plain.built

    whole = [rows.reshape(hvd.size(), 4, 8, -1).swapaxes(0, 1).reshape(64, -1) for rows in
             (np.concatenate(hvd.allgather_object(each)) for each in (x, y))]
    alone = make_model(keras, keras.optimizers.SGD(0.05, momentum=0.9), 1)
    alone.fit(*whole, batch_size=16, epochs=3, shuffle=False, verbose=0, callbacks=[
        hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=2)])
    for a, b in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def check_ways_to_reduce(hvd, keras):
    x, y = data(hvd.rank())

    def trained(optimizer, batch_size=8):
        model = make_model(keras, optimizer, 5)
        model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
        mine = bits(model.weights)  # PyTorch empties accumulators to 0 and -0
        assert all(each == mine for each in hvd.allgather_object(mine))
        return model.get_weights()

    sgd = keras.optimizers.SGD
    expected = trained(hvd.DistributedOptimizer(sgd(0.01)))
    for optimizer in (
        hvd.DistributedOptimizer(sgd(0.01 / hvd.size()), op=hvd.Sum),
        hvd.DistributedOptimizer(sgd(0.01), gradient_predivide_factor=2.0),
        hvd.DistributedOptimizer(sgd(0.01), backward_passes_per_step=2, average_aggregated_gradients=True),
        hvd.DistributedOptimizer(sgd(0.005), backward_passes_per_step=2),
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd(0.01), initial_scale=4.0)),
    ):
        size = 4 if getattr(optimizer, "gradient_accumulation_steps", None) else 8
        for a, b in zip(trained(optimizer, size), expected):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    coarse = trained(hvd.DistributedOptimizer(sgd(0.01), compression=hvd.Compression.fp16))
    for a, b in zip(coarse, expected):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)

    inside = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd(0.01)))
    with pytest.raises(ValueError, match="inside of a LossScaleOptimizer"):
        trained(inside)
    with pytest.raises(ValueError, match="reduced already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(ValueError, match="op is Average or Sum"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Max)


def check_local_layers(hvd, keras):
    x, y = data(hvd.rank())
    model = make_model(keras, "sgd", 3)
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=model.layers[0])
    model.compile(optimizer, loss="mse")
    model.fit(x, y, batch_size=8, verbose=0)
    for layer, same in zip(model.layers, (False, True)):
        mine = bits(layer.weights)
        assert all(each == mine for each in hvd.allgather_object(mine)) == same


def check_schedule(hvd, keras):
    """Momentum that was gathered at one rate counts the same at the next."""
    x, y = data(hvd.rank())
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(float(keras.ops.convert_to_numpy(self.model.optimizer.momentums[0].value).sum()))

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 10.0**-epoch, end_epoch=2)
    model = make_model(keras, optimizer, 2)
    optimizer.build(model.trainable_variables)
    history = model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=[Look(), schedule, Look()])
    np.testing.assert_allclose(history.history["lr"], [0.1, 0.01, 0.01])
    np.testing.assert_allclose(seen[3], 0.1 * seen[2], rtol=1e-5)
    assert seen[5] == seen[4] != 0


def check_options_of_callbacks(hvd, keras, folder):
    r = hvd.rank()
    x, y = data(r)
    rates = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    def fitted(model, *callbacks, **options):
        rates.clear()
        model.fit(x, y, **{"batch_size": 16, "verbose": 0, "callbacks": [*callbacks, Look()], **options})
        return rates

    def of_the_rank(variable):
        mine, other = hvd.allgather_object(bits([variable]))
        return mine != other

    # local_variables= keep this rank's values, the others are the root's.
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), r)
    bias = model.layers[0].bias
    bias.assign(np.full(8, float(r)))
    fitted(model, hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=[bias]))
    assert of_the_rank(bias) and not of_the_rank(model.layers[0].kernel) and not of_the_rank(model.layers[1].kernel)

    # A model that is built by its first batch has the root's values behind it.
    keras.utils.set_random_seed(r)
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    assert not model.built
    fitted(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    assert model.built and same_everywhere(hvd, model)

    # build() of a model without one of its own says that it is built, and leaves its layers to the first batch.
    class Bare(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(1)

        def call(self, inputs):
            return self.last(inputs)

    bare = Bare()
    bare.build(x.shape)
    bare.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    assert bare.built and not bare.last.built
    fitted(bare, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    assert same_everywhere(hvd, bare)

    # staircase=False changes the rate with each batch, of which Keras knows the number, or is told.
    def decay(epoch):
        return 0.25**epoch

    schedule = hvd.callbacks.LearningRateScheduleCallback
    for options in ({}, {"steps_per_epoch": 4}):
        smooth = schedule(1e-3, decay, staircase=False, momentum_correction=False, **options)
        seen = fitted(model, smooth, epochs=2)
        count = options.get("steps_per_epoch", 2)
        np.testing.assert_allclose(seen, [1e-3 * decay(epoch + batch / count) for epoch in (0, 1) for batch in (0, 1)], rtol=1e-5)
    generated = ((x[:16], y[:16]) for _ in range(2))
    with pytest.raises(ValueError, match="LearningRateScheduleCallback: Keras does not know how many steps.*pass steps_per_epoch"):
        model.fit(generated, verbose=0, callbacks=[schedule(1e-3, decay, staircase=False)])
    with pytest.raises(ValueError, match="initial_lr is required"):
        schedule(None, decay)

    # verbose=1: rank 0 says when the warm-up is over.
    said = io.StringIO()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1, steps_per_epoch=2, verbose=1)
    with contextlib.redirect_stdout(said):
        seen = fitted(model, warmup, epochs=2)
    assert said.getvalue() == ("" if r else "\nEpoch 1: finished gradual learning rate warmup to 0.01.\n")
    np.testing.assert_allclose(seen, [0.01 * 3 / 4, 0.01, 0.01, 0.01], rtol=1e-5)  # from half of it, in two batches

    # save_weights_only, which need a file.
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=True)
    with pytest.raises(ValueError, match="set its filepath before fit"):
        fitted(model, best)
    best.filepath = os.path.join(folder, f"only{r}.weights.h5")
    fitted(model, hvd.callbacks.MetricAverageCallback(), best)
    hvd.barrier()
    assert os.listdir(folder) == ["only0.weights.h5"]
    again = make_model(keras, "sgd", 1)
    again.load_weights(os.path.join(folder, "only0.weights.h5"))
    assert bits(again.weights)[0] == bits(model.weights)[0]
    hvd.barrier()
    if r == 0:
        os.remove(best.filepath)


def check_saving(hvd, keras, folder):
    x, y = data(hvd.rank())
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    best.filepath = os.path.join(folder, f"best{hvd.rank()}.keras")
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), 7)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0,
              callbacks=[hvd.callbacks.MetricAverageCallback(), best])
    hvd.barrier()
    assert sorted(os.listdir(folder)) == ["best0.keras"]
    loaded = hvd.load_model(os.path.join(folder, "best0.keras"))
    assert bits(loaded.optimizer.variables) == bits(model.optimizer.variables)
    for each in (model, loaded):
        each.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert bits(loaded.weights) == bits(model.weights) and same_everywhere(hvd, loaded)
    with pytest.raises(ValueError, match="no global variables"):
        hvd.broadcast_global_variables(0)
    loaded.layers[0].bias.assign(np.full(8, float(hvd.rank())))
    hvd.broadcast_global_variables(1, loaded)
    assert loaded.layers[0].bias.value[0] == 1 and same_everywhere(hvd, loaded)


def check_join(hvd, keras):
    """A rank with fewer batches, whose steps on JAX are under way when it joins."""
    r = hvd.rank()
    x, y = data(r, 16 + 16 * r)
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), 5)
    model.fit(x, y, batch_size=8, verbose=0)
    assert hvd.join() == 1
    hvd.broadcast_global_variables(1, model)
    assert same_everywhere(hvd, model)


def check_like_horovods(hvd, keras):
    """A number as multiplier, a user's class, what an optimizer has learnt, ranks outside of the set."""
    x, y = data(hvd.rank())
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=1)
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), 2)
    history = model.fit(x, y, batch_size=32, epochs=4, verbose=0, callbacks=[schedule])
    np.testing.assert_allclose(history.history["lr"], [0.1, 0.1, 0.05, 0.025])

    @keras.saving.register_keras_serializable(package="mine")
    class Own(keras.optimizers.SGD):
        pass

    assert type(hvd.DistributedOptimizer(Own())) is not Own
    saved = keras.optimizers.serialize(hvd.DistributedOptimizer(Own(0.2)))
    assert isinstance(keras.optimizers.deserialize(saved), Own)
    assert type(keras.optimizers.deserialize(json.loads(json.dumps(saved)))) is Own

    trained = keras.optimizers.Adam(0.01)
    alone = make_model(keras, trained, 2)
    alone.fit(x, y, batch_size=8, verbose=0)
    more = hvd.DistributedOptimizer(trained, backward_passes_per_step=2)
    values = {each.name: keras.ops.convert_to_numpy(each.value) for each in more.variables}
    for each in trained.variables:
        np.testing.assert_array_equal(values[each.name], keras.ops.convert_to_numpy(each.value))

    only = hvd.add_process_set([0])
    model = make_model(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=only), 2)
    model.fit(x, y, batch_size=8, verbose=0)
    hvd.remove_process_set(only)
    with pytest.raises(ValueError, match="ranks have other metrics, loss"):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, **({"val_loss": 1.0} if hvd.rank() else {})})


def check_clones(hvd, keras):
    """Whatever Keras and Python make of a distributed optimizer in this process is distributed as it is."""
    x, y = data(hvd.rank())
    original = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), op=hvd.Sum)
    model = make_model(keras, original, 5)

    def trained(model):
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        return model.get_weights()

    expected = trained(model)

    def compiled_again(old):
        new = keras.models.clone_model(old)
        new.compile_from_config(old.get_compile_config())
        return new

    def cloned(old):
        new = keras.models.clone_model(old)
        return new if getattr(new, "optimizer", None) else compiled_again(old)  # Keras before 3.7 compiles no clone

    copies = {
        "deepcopy": make_model(keras, copy.deepcopy(original), 5),
        "copy": make_model(keras, copy.copy(original), 5),
        "pickle": make_model(keras, pickle.loads(pickle.dumps(original)), 5),
        "from_config": make_model(keras, type(original).from_config(original.get_config()), 5),
        "clone_model": cloned(model),
        "compile_from_config": compiled_again(model),
    }
    weights = make_model(keras, "sgd", 5).get_weights()
    for name, other in copies.items():
        assert other.optimizer is not original and type(other.optimizer) is type(original), name
        other.set_weights(weights)
        for a, b in zip(trained(other), expected):
            np.testing.assert_array_equal(a, b, err_msg=name)
        assert same_everywhere(hvd, other), name

    partial = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=model.layers[0])
    model.compile(partial, loss="mse")
    clone = cloned(model)  # its variables have the paths of the model's
    clone.set_weights(weights)
    trained(clone)
    for layer, same in zip(clone.layers, (False, True)):
        mine = bits(layer.weights)
        assert all(each == mine for each in hvd.allgather_object(mine)) == same
    assert pickle.loads(pickle.dumps(partial))._rueda.local == [each.path for each in model.layers[0].trainable_variables]

    registered = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    registered.register_local_var(model.layers[1].bias)
    model.compile(registered, loss="mse")
    trained(model)
    mine, other = hvd.allgather_object(bits([model.layers[1].bias]))
    assert mine != other

    only = hvd.add_process_set([0])
    again = pickle.loads(pickle.dumps(hvd.DistributedOptimizer(keras.optimizers.SGD(), process_set=only)))
    assert again._rueda.process_set is only
    hvd.remove_process_set(only)
    of_a_file = json.loads(json.dumps(original.get_config()))
    assert not hasattr(keras.optimizers.SGD.from_config(dict(of_a_file)), "_rueda")
    with pytest.raises(ValueError, match="pass it to DistributedOptimizer"):
        type(original).from_config(of_a_file)


def everything():
    import keras
    import rueda.keras as hvd

    hvd.init()
    check_values(hvd, keras)
    check_training(hvd, keras)
    check_ways_to_reduce(hvd, keras)
    check_local_layers(hvd, keras)
    check_schedule(hvd, keras)
    check_like_horovods(hvd, keras)
    check_clones(hvd, keras)
    check_join(hvd, keras)
    check_options_of_callbacks(hvd, keras, os.environ["TEST_FOLDER"])
    check_saving(hvd, keras, os.environ["TEST_FOLDER"])
    hvd.shutdown()
    return keras.backend.backend()


PLAIN = """
import sys
sys.modules["rueda"] = None
import keras
model = keras.models.load_model(sys.argv[1])
print(type(model.optimizer).__name__, int(keras.ops.convert_to_numpy(model.optimizer.iterations)), len(model.optimizer.variables))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend, tmp_path):
    env = {"KERAS_BACKEND": backend, "TEST_FOLDER": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert results(run_ranks(2, everything, env)) == [backend] * 2
    plain = [sys.executable, "-c", PLAIN, tmp_path / "best0.keras"]
    other = {**os.environ, "KERAS_BACKEND": BACKENDS[0]}
    done = subprocess.run(plain, env=other, capture_output=True, text=True)
    assert done.stdout.split() == ["Adam", "8", "10"], done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_example_learns_the_digits(backend):
    env = {"KERAS_BACKEND": backend}
    code, output = launch(2, [sys.executable, EXAMPLE, "--epochs", "4"], env, options=["--no-prefix"])
    assert code == 0, output
    assert float(output.split("test accuracy ")[1].split()[0]) > 0.85, output


def test_an_older_keras_is_one_clear_error(tmp_path):
    (tmp_path / "keras.py").write_text("__version__ = '2.15.0'")
    env = {**os.environ, "PYTHONPATH": str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    done = subprocess.run([sys.executable, "-c", "import rueda.keras"], env=env, capture_output=True, text=True)
    assert "ImportError: rueda.keras needs Keras 3 or newer, this one is 2.15.0" in done.stderr
