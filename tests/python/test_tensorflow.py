"""rueda.tensorflow: one world, in which everything happens, as importing TensorFlow takes seconds."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from worlds import kill_once_all_are_here, launch, results, run_ranks

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("no TensorFlow here", allow_module_level=True)

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "AUTOGRAPH_VERBOSITY": "0", "KERAS_BACKEND": "tensorflow"}


def check_collectives(hvd, tf):
    n, r = hvd.size(), hvd.rank()
    for run in (lambda f: f, tf.function):
        x = tf.range(3.0) + float(r)
        np.testing.assert_array_equal(run(lambda x: hvd.allreduce(x))(x), np.arange(3) + (n - 1) / 2)
        for op, expected in ((hvd.Min, 1), (hvd.Max, n), (hvd.Product, 2), (hvd.Sum, n * (n + 1) / 2)):
            assert run(lambda x, op=op: hvd.allreduce(x, op=op))(tf.constant(r + 1.0)) == expected
        scaled = run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2, postscale_factor=0.1))
        np.testing.assert_allclose(scaled(tf.constant(1.0, tf.float64)), 0.2 * n, rtol=1e-15)
        two = run(lambda x: hvd.grouped_allreduce([x, tf.cast(x, tf.int32)], op=hvd.Sum))(x)
        assert two[1].numpy().tolist() == [n * i + n * (n - 1) // 2 for i in range(3)]
        rows = run(lambda: hvd.allgather(tf.fill([r + 1, 2], float(r))))()
        assert rows[:, 1].numpy().tolist() == [0, 1, 1] and rows.shape[1] == 2
        a, b = run(lambda: hvd.grouped_allgather([tf.fill([1], r), tf.fill([0, 2], True)]))()
        assert a.numpy().tolist() == [0, 1] and b.shape == (0, 2)
        assert run(lambda: hvd.broadcast(tf.constant(r + 5, tf.uint16), 1))() == 6
        got, received = run(lambda: hvd.alltoall(tf.range(3) + 10 * r, splits=[1, 2]))()
        assert got.numpy().tolist() == ([0, 10] if r == 0 else [1, 2, 11, 12])
        assert received.numpy().tolist() == [r + 1] * 2
        assert run(lambda: hvd.alltoall(tf.range(2) + 10 * r))().numpy().tolist() == [r, 10 + r]
        mine = run(lambda x: hvd.reducescatter(x, op=hvd.Sum))(tf.range(3.0))
        assert mine.numpy().tolist() == [[0, n], [2 * n]][r]
        slices = tf.IndexedSlices(tf.fill([1, 2], r + 1.0), tf.constant([r]), tf.constant([4, 2]))
        dense = run(lambda: tf.convert_to_tensor(hvd.allreduce(slices)))()
        assert dense[:, 0].numpy().tolist() == [0.5, 1, 0, 0]
        asked = run(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_size_op(), hvd.local_rank_op(),
                             hvd.process_set_included_op(0)])()
        assert [int(each) for each in asked] == [r, n, n, r, 1]
    for dtype in (tf.bool, tf.bfloat16, tf.float16, tf.uint16, tf.uint32, tf.uint64, tf.complex64, tf.complex128, tf.int8):
        summed = hvd.allreduce(tf.cast([1, 1], dtype), op=hvd.Sum)
        assert summed.dtype == dtype and complex(tf.cast(summed[0], tf.complex128)) == (1 if dtype == tf.bool else n)
    most = tf.constant(2**32 - 1 if r else 3, tf.uint32)
    for run in (lambda f: f, tf.function):
        assert run(lambda: hvd.allreduce(most, op=hvd.Max))() == 2**32 - 1
        assert run(lambda: hvd.allreduce(tf.constant(r + 2, tf.uint64)))() == 2
        product = run(lambda: hvd.allreduce(tf.constant(1 + (r + 1) * 1j), op=hvd.Product))()
        assert product.numpy() == -1 + 3j
        gathered = run(lambda: hvd.allgather(tf.fill([r + 1], tf.constant(r + 1j))))()
        assert gathered.numpy().tolist() == [1j, 1 + 1j, 1 + 1j]
    halved = hvd.allreduce(tf.constant(1.5), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert halved.dtype == tf.float32 and halved == 1.5 * n
    only = hvd.add_process_set([1])
    if r == 1:
        assert hvd.allreduce(tf.constant(3.0), op=hvd.Sum, process_set=only) == 3
    else:
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(tf.constant(3.0), process_set=only)
    assert int(hvd.size_op(only.process_set_id)) == 1
    assert int(hvd.process_set_included_op(only.process_set_id)) == r
    hvd.remove_process_set(only)
    assert hvd.allgather_object({"r": r}) == [{"r": 0}, {"r": 1}]
    assert hvd.broadcast_object(r, 1) == hvd.broadcast_object_fn(1)(r) == 1
    variables = [tf.Variable([float(r)] * 2), tf.Variable(r + 7)]
    hvd.broadcast_variables(variables, 1)
    assert [v.numpy().tolist() for v in variables] == [[1, 1], 8]
    assert hvd.join() in range(n)


def check_order(hvd, tf):
    """Reversed on one rank, of constants too: TensorFlow does not compute them once for all."""
    n, r = hvd.size(), hvd.rank()

    @tf.function
    def eight():
        order = range(8) if r == 0 else reversed(range(8))
        out = {i: hvd.allreduce(tf.constant(float(i)), op=hvd.Sum, name=f"of.{i}") for i in order}
        return [out[i] for i in range(8)]

    before = hvd.counter("tensors")
    for _ in range(3):
        assert [float(each) for each in eight()] == [n * i for i in range(8)]
    assert hvd.counter("tensors") == before + 24

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = hvd.allreduce(x, op=hvd.Sum)
        if x > 0:
            x = hvd.allreduce(x + 1, op=hvd.Sum)
        return x

    assert loop(tf.constant(1.0)) == n * (n**3 + 1)
    if r == 0:  # nobody else traces this: nothing shifts
        tf.function(lambda x: hvd.allreduce(x)).get_concrete_function(tf.TensorSpec([7], tf.float32))
    assert tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant(1.0)) == n


def check_prints(hvd, tf):
    """Reversed on one rank, with a print of each result, which TensorFlow keeps in order with others."""
    n, r = hvd.size(), hvd.rank()

    @tf.function
    def eight(x):
        out = {}
        for i in range(8) if r == 0 else reversed(range(8)):
            out[i] = hvd.allreduce(x + i, op=hvd.Sum, name=f"printed.{i}")
            tf.print(i, out[i], output_stream=f"file://{os.devnull}")
        return [out[i] for i in range(8)]

    assert [float(each) for each in eight(tf.constant(1.0))] == [n * (i + 1) for i in range(8)]


def check_names_again(hvd, tf):
    """A name may stand in several places of a program and in the iterations of a loop, which run at the same time."""
    n, r = hvd.size(), hvd.rank()
    x = tf.Variable(2.0)

    def numbers(tensors):
        return [float(each) for each in tensors]

    @tf.function
    def thrice():
        with tf.GradientTape(persistent=True) as tape:
            y = sum(hvd.allreduce(x * i, op=hvd.Sum, name="same") for i in (1.0, 2.0, 3.0))
        return y, tape.gradient(y, x), tape.gradient(y, x)

    assert numbers(thrice()) == [12 * n, 6 * n, 6 * n]

    def loop(name, parallel):
        def body(i, total):
            return i + 1, total + hvd.allreduce(tf.cast(i, tf.float32) * x, op=hvd.Sum, name=name)

        return tf.while_loop(lambda i, _: i < 120, body, [tf.constant(0), tf.constant(0.0)], parallel_iterations=parallel)[1]

    for parallel in (1, 10, 100):
        for name in ("looped", None):

            @tf.function
            def step(name=name, parallel=parallel):
                with tf.GradientTape() as tape:
                    total = loop(name, parallel)
                return total, tape.gradient(total, x)

            assert numbers(step()) == [n * 2 * 7140, n * 7140]  # of 0 to 119

    @tf.function
    def branches(flag):
        if flag:
            y = hvd.allreduce(x, op=hvd.Sum, name="branch")
        else:
            y = hvd.allreduce(2 * x, op=hvd.Sum, name="branch")
        return y, hvd.allreduce(x, op=hvd.Sum, name="branch")

    assert numbers(branches(tf.constant(r == 0))) == [6, 4]

    before = hvd.counter("tensors")
    squares = tf.function(lambda v: tf.vectorized_map(lambda e: hvd.allreduce(e * e, op=hvd.Sum, name="batch"), v))
    assert squares(tf.range(3.0)).numpy().tolist() == [0, n, 4 * n] and hvd.counter("tensors") == before + 1
    assert tf.map_fn(lambda e: hvd.allgather(e[None]), tf.range(3.0)).numpy().tolist() == [[i] * n for i in range(3)]
    with pytest.raises(NotImplementedError, match="allgather in tf.vectorized_map: use tf.map_fn"):
        tf.vectorized_map(lambda e: hvd.allgather(e[None]), tf.range(3.0))
    with tf.GradientTape() as tape:
        y = hvd.allreduce(x * tf.range(3.0), op=hvd.Sum, name="rows")
    assert tape.jacobian(y, x).numpy().tolist() == [0, n, 2 * n]


def check_gradients(hvd, tf):
    n, r = hvd.size(), hvd.rank()
    total = n * (n + 1) / 2

    def gradient(f, rows=4):
        x = tf.Variable(tf.range(float(rows)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(f(x)) * (r + 1.0)
        return tape.gradient(loss, x).numpy().tolist()

    for run in (lambda f: f, tf.function):
        assert gradient(run(lambda x: hvd.allreduce(x, op=hvd.Sum))) == [total] * 4
        assert gradient(run(lambda x: hvd.allreduce(x))) == [total / n] * 4
        assert gradient(run(lambda x: hvd.broadcast(x, 1))) == [total / n if r == 1 else 0] * 4
        assert gradient(run(lambda x: hvd.allgather(x)), rows=2 + r) == [total / n] * (2 + r)
        assert gradient(run(lambda x: hvd.reducescatter(x, op=hvd.Sum))) == [n, n, 2 * n, 2 * n]
        assert gradient(run(lambda x: hvd.alltoall(x))) == [1, 1, 2, 2]
        assert gradient(run(lambda x: hvd.alltoall(x, splits=[1, 3])[0])) == [1, 2, 2, 2]
    with pytest.raises(Exception, match="op=Average and op=Sum only"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max))


def check_gradients_of_constants(hvd, tf):
    """Reversed on one rank, forward and so backward; what they start from is known when the function is traced."""
    n, r = hvd.size(), hvd.rank()
    every = {
        "gather": (lambda x, name: hvd.allgather(x, name=name), [(n + 1) / 2] * 2),
        "exchange": (lambda x, name: hvd.alltoall(x, name=name), [1, 2]),
        "exchange.some": (lambda x, name: hvd.alltoall(x, splits=[1, 1], name=name)[0], [1, 2]),
        "scatter": (lambda x, name: hvd.reducescatter(x, op=hvd.Sum, name=name), [n, 2 * n]),
    }

    def step():
        x = {name: tf.constant([1.0, 2.0]) for name in every}
        with tf.GradientTape() as tape:
            tape.watch(x)
            order = every if r == 0 else reversed(every)
            found = [tf.reduce_sum(every[name][0](x[name], name)) for name in order]
            loss = tf.add_n(found) * (r + 1.0)
        return tape.gradient(loss, x)

    for run in (tf.function, tf.function):  # traced twice
        for _ in range(2):
            grads = run(step)()
            for name, (_, expected) in every.items():
                assert grads[name].numpy().tolist() == expected, (name, grads[name])


def check_threads(hvd, tf):
    """Two at once, whose named operations come in another order on each rank; eagerly and in functions."""
    import threading

    n, r = hvd.size(), hvd.rank()
    step = tf.function(lambda x, name: hvd.allreduce(x, op=hvd.Sum, name=name), reduce_retracing=False)
    found, together = {}, threading.Barrier(2)

    def work(name, scale):
        together.wait()
        eager = [float(hvd.allreduce(tf.constant(scale * i), op=hvd.Sum, name=f"{name}.{i}")) for i in range(20)]
        compiled = [float(step(tf.constant(scale * i), f"{name}.f")) for i in range(20)]
        found[name] = eager + compiled

    threads = [threading.Thread(target=work, args=each) for each in (("red", 1.0), ("blue", 10.0))[:: 1 if r == 0 else -1]]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {name: [n * scale * i for i in range(20)] * 2 for name, scale in (("red", 1.0), ("blue", 10.0))}


def check_the_rest(hvd, tf):
    n, r = hvd.size(), hvd.rank()
    x = tf.constant([1.0, 1.0 + 2.0**-12])  # bfloat16 has 8 bits
    for run in (lambda f: f, tf.function):
        coarse = run(lambda: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16))()
        assert coarse.dtype == tf.float32 and coarse.numpy().tolist() == [n, n]
        whole = run(lambda: hvd.allreduce(tf.constant([r, 300]), op=hvd.Sum, compression=hvd.Compression.bf16))()
        assert whole.numpy().tolist() == [n * (n - 1) // 2, 300 * n]  # whole numbers stay what they are
    variables = [tf.Variable([r + 1.0, 2.0]), tf.Variable(r == 1)]
    given = hvd.broadcast_(variables, 1, name="given")
    assert given[0] is variables[0] and variables[0].numpy().tolist() == [2, 2] and bool(variables[1].numpy())

    @tf.function
    def of_root_0():
        hvd.broadcast_(variables[:1], 0)

    variables[0].assign([10.0 * r, r])
    of_root_0()
    assert variables[0].numpy().tolist() == [0, 0]


def alone_or_grouped(hvd, tf, several):
    """Under one name; a group of one is nothing else than its tensor."""
    x = tf.ones(2)
    if hvd.rank() == 0:
        return hvd.allreduce(x, op=hvd.Sum, name="both")
    return hvd.grouped_allreduce([x] * several, op=hvd.Sum, name="both")[0]


def check_wrong_arguments(hvd, tf):
    """Each is TensorFlow's error and Horovod's, eagerly and when a function is traced, and nothing was sent."""
    import keras
    import pickle

    x, r = tf.ones(2), hvd.rank()
    other = hvd.add_process_set([1])
    wrong = {
        "root_rank 9 is not one of": lambda: hvd.broadcast(x, 9),
        "root_rank=1.0: expected a whole": lambda: hvd.broadcast(x, 1.0),
        "op=77: expected Average": lambda: hvd.allreduce(x, op=77),
        "op='sum': expected": lambda: hvd.grouped_allreduce([x], op="sum"),
        "op=78: expected": lambda: hvd.reducescatter(x, op=78),
        "either op or average": lambda: hvd.allreduce(x, op=hvd.Sum, average=True),
        "could not convert": lambda: hvd.allreduce(x, prescale_factor="two"),
        "name='': expected": lambda: hvd.allgather(x, name=""),
        "alltoall: splits of": lambda: hvd.alltoall(x, splits=[1.0, 1.0]),
        "gradient_predivide_factor is for": lambda: hvd.DistributedGradientTape(
            tf.GradientTape(), gradient_predivide_factor=2.0, op=hvd.Sum
        ),
    }
    if r == 0:
        wrong["not a member"] = lambda: hvd.allreduce(x, process_set=other)
    for text, call in wrong.items():
        for run in (lambda f: f, tf.function):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text) as caught:
                run(call)()
            assert isinstance(caught.value, ValueError)
    for text, call in {
        "root_rank 9 is not one of": lambda: hvd.broadcast_object(1, 9),
        "expected a tf.GradientTape": lambda: hvd.DistributedGradientTape(3),
        "op is Average or Sum": lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max),
    }.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=text) as caught:
            call()
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), ValueError)
    assert hvd.allreduce(x, op=hvd.Sum).numpy().tolist() == [2, 2]
    hvd.remove_process_set(other)


def check_errors(hvd, tf):
    r = hvd.rank()
    for run in (lambda f: f, tf.function):
        with pytest.raises(tf.errors.FailedPreconditionError, match="unequal.*rank"):
            run(lambda: hvd.allreduce(tf.zeros(2 + r), name="unequal"))()
        with pytest.raises(tf.errors.InvalidArgumentError, match="without dimensions"):
            run(lambda: hvd.allgather(tf.constant(1.0)))()
        with pytest.raises(tf.errors.InvalidArgumentError, match="complex numbers have no order"):
            run(lambda: hvd.allreduce(tf.constant(1j), op=hvd.Max))()
        with pytest.raises(tf.errors.FailedPreconditionError, match="sent int32.*sent uint32"):
            run(lambda: hvd.allreduce(tf.constant(1, tf.uint32 if r else tf.int32), name="sign"))()
        with pytest.raises(tf.errors.FailedPreconditionError, match="outside a group.*in group .* of 2"):
            run(lambda: hvd.grouped_allreduce([tf.zeros(2)] * (1 + r), name="list"))()
        for several in (2, 1):
            both = run(lambda: alone_or_grouped(hvd, tf, several))  # noqa: B023
            if several == 1:
                assert both().numpy().tolist() == [hvd.size()] * 2
                continue
            with pytest.raises(tf.errors.FailedPreconditionError, match="outside a group.*in group .* of 2"):
                both()
        with pytest.raises(tf.errors.InvalidArgumentError, match="dtype cannot travel"):
            run(lambda: hvd.broadcast(tf.constant("text"), 0))()
    with pytest.raises(ValueError, match="root_rank 9 is not one of"):
        hvd.broadcast(tf.constant(1.0), 9)
    with pytest.raises(NotImplementedError, match="XLA cannot compile collectives"):
        tf.function(lambda x: hvd.allreduce(x), jit_compile=True)(tf.constant(1.0))
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum) == hvd.size()


def check_training(hvd, tf):
    n, r = hvd.size(), hvd.rank()
    x = tf.random.stateless_normal([16, 4], [r, 1])
    w, b, table = tf.Variable(tf.ones([4, 1]) * r), tf.Variable([0.0]), tf.Variable(tf.ones([5, 4]))
    hvd.broadcast_variables([w, b, table], 0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, [r, 3])
            loss = tf.reduce_mean((x @ w + b - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
            loss += tf.reduce_sum(rows)
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, [w, b, table])
        for variable, grad in zip((w, b, table), grads):
            variable.assign_sub(0.1 * tf.convert_to_tensor(grad))
        return loss, isinstance(grads[2], tf.IndexedSlices)

    losses = [step() for _ in range(30)]
    assert losses[-1][0] < losses[0][0] and bool(losses[0][1])
    bits = [each.numpy().tobytes() for each in (w, b, table)]
    assert hvd.allgather_object(bits) == [bits] * n
    with tf.GradientTape() as tape:
        loss = (w[0, 0] + b[0]) * (r + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(b)
    of_w, of_b = tape.gradient(loss, [w, b])
    assert of_w[0, 0] == (n + 1) / 2 and of_b == (r + 1) / n

    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    v = tf.Variable(0.0)
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: v * (r + 1.0), [v]))
    assert v == -(n + 1) / 2


def check_keras_layers(hvd, tf):
    import keras

    n, r = hvd.size(), hvd.rank()
    whole = tf.random.stateless_normal([8 * n, 3], [7, 7])
    layer, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    mine = layer(whole[8 * r : 8 * (r + 1)], training=True)
    np.testing.assert_allclose(mine, plain(whole, training=True)[8 * r : 8 * (r + 1)], atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, plain.moving_variance, rtol=1e-5)
    cut = 5  # batches of different sizes: each row counts once; with a mask, those that it has
    some = whole[:cut] if r == 0 else whole[cut:]
    expected = plain(whole, training=True)
    np.testing.assert_allclose(layer(some, training=True), expected[:cut] if r == 0 else expected[cut:], atol=1e-5)
    rows, kept = tf.reshape(whole, [n, 8, -1]), tf.sequence_mask([3, 7], 8)
    expected = keras.layers.BatchNormalization()(rows, training=True, mask=kept)
    got = hvd.SyncBatchNormalization()(rows[r : r + 1], training=True, mask=kept[r : r + 1])
    np.testing.assert_allclose(got, expected[r : r + 1], atol=1e-4)
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)

    import rueda.keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    assert isinstance(optimizer, keras.optimizers.SGD)
    for wrong in (optimizer, hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))):
        with pytest.raises(NotImplementedError, match="leave out jit_compile=True"):
            model.compile(wrong, loss="mse", jit_compile=True)
    model.compile("sgd", loss="mse", jit_compile=True)  # without collectives: Keras's own matter
    assert model.jit_compile is True
    model.compile(optimizer, loss="mse")
    with pytest.raises(NotImplementedError, match="leave out jit_compile=True"):
        model.jit_compile = True
    assert model.jit_compile is False
    model.fit(whole, whole[:, :1], verbose=0)
    normal = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization()])
    normal.compile("sgd", loss="mse", jit_compile=True)  # only its layer talks to others
    with pytest.raises(NotImplementedError, match="leave out jit_compile=True"):
        normal.fit(whole, whole, verbose=0)
    with pytest.MonkeyPatch.context() as changes:  # with a GPU Keras would choose XLA
        changes.setattr(tf.config, "list_physical_devices", lambda *kind: [types.SimpleNamespace(device_type="GPU")])
        for auto, each in ((False, optimizer), (True, keras.optimizers.SGD(0.01))):
            model.compile(each, loss="mse")
            assert model.jit_compile == auto
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(whole)) * (r + 1.0)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers)
    grads = tape.gradient(loss, model.trainable_variables)
    assert grads[1] == 8.0 * n * (r + 1) / n
    assert rueda.keras.size() == n


def check_names(hvd, tf):
    """What a rank has traced alone, and the sets that it is in, change no name."""
    n, r = hvd.size(), hvd.rank()

    @tf.function
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def outer(x):
        return inner(x), hvd.allreduce(10 * x, op=hvd.Sum)

    @tf.function
    def cubes(x):
        return tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 3)

    if r == 0:
        inner.get_concrete_function(tf.TensorSpec([], tf.float32))
        for rows in range(3):
            tf.function(lambda x: x * 2).get_concrete_function(tf.TensorSpec([rows], tf.float32))
    assert [float(each) for each in outer(tf.constant(1.0))] == [n, 10 * n]
    x = tf.Variable(tf.ones(2))
    with tf.GradientTape() as second:
        with tf.GradientTape() as tape:
            y = cubes(x)
        first = tape.gradient(y, x)
    assert first.numpy().tolist() == [3 * n**3] * 2
    assert second.gradient(first, x).numpy().tolist() == [6 * n**3] * 2

    alone = hvd.add_process_set([0])

    @tf.function
    def mixed(x):
        if alone.included():
            x = hvd.allreduce(x, op=hvd.Sum, process_set=alone)
        return hvd.allreduce(x, op=hvd.Sum)

    assert mixed(tf.constant(1.0)) == n
    tape = tf.GradientTape()
    with tape:
        loss = x[0] * (r + 1.0)
    tape = hvd.DistributedGradientTape(tape, process_set=alone)
    assert tf.convert_to_tensor(tape.gradient(loss, [x])[0])[0] == r + 1
    table = tf.Variable(tf.ones([4, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1]))
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(table)
    assert tf.convert_to_tensor(tape.gradient(loss, [table])[0]).numpy().sum() == 2 / n
    hvd.remove_process_set(alone)


def check_like_horovods(hvd, tf):
    """Names, parameters, defaults, and what scripts ask of a distributed tape."""
    import horovod_facts
    from signatures import differences, load

    n, r = hvd.size(), hvd.rank()
    if r == 0:
        for module, wanted in horovod_facts.FRAMEWORKS.items():
            assert differences(load(module), wanted) == {}, module
        assert load("horovod.tensorflow").DistributedGradientTape is hvd.DistributedGradientTape
    assert [k for k in range(9) if hvd.check_num_rank_power_of_2(k)] == [1, 2, 4, 8]
    assert hvd.split_list([1, 2, 3], 2) == [[1, 2], [3]] and not hvd.gpu_available("tensorflow")

    x = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        assert isinstance(tape, tf.GradientTape)
        loss = tf.reduce_sum(x * x) * (r + 1.0)
        with tape.stop_recording():
            x * 2.0
    assert [each is x for each in tape.watched_variables()] == [True]
    for _ in range(2):
        assert tape.gradient(loss, x).numpy().tolist() == [n + 1, 2 * (n + 1)]
    assert tape.gradient(loss, {"x": x})["x"][0] == n + 1
    with tf.GradientTape() as plain:
        y = x * (r + 1.0)
    assert hvd.DistributedGradientTape(plain).jacobian(y, x).numpy().tolist() == [[r + 1, 0], [0, r + 1]]
    with pytest.raises(RuntimeError, match="non-persistent"):
        plain.gradient(y, x)
    with pytest.raises(ValueError, match="reduced already"):
        hvd.DistributedGradientTape(tape)
    for make, options in ((hvd.DistributedGradientTape, {"groups": 0}), (hvd.DistributedGradientTape, {"groups": "x"}),
                          (hvd.PartialDistributedGradientTape, {"local_layers": [3]})):
        with pytest.raises(ValueError, match="expected a list of lists|expected layers"):
            make(plain, **options)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(plain, num_groups=1)

    descent = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    optimizer = hvd.DistributedOptimizer(descent)
    mine, every = tf.Variable(0.0), tf.Variable(0.0)
    optimizer.register_local_var(mine)
    pairs = optimizer.compute_gradients(lambda: (mine + every) * (r + 1.0), [mine, every])
    assert [float(grad) for grad, _ in pairs] == [(r + 1) / n, (n + 1) / 2]
    with pytest.raises(ValueError, match="do not go together"):
        hvd.DistributedOptimizer(descent, op=hvd.Adasum, average_aggregated_gradients=True)


def check_splits(hvd, tf):
    """Of an alltoall: what is wrong is one clear error, before anything is sent."""
    for run in (lambda f: f, tf.function):
        for wrong in ([1.0, 2.0], ["1", "2"], [True, False], [[1, 2]], 3):
            with pytest.raises(ValueError, match="alltoall: splits of .*: expected whole numbers, of rows, one for each rank"):
                run(lambda s=wrong: hvd.alltoall(tf.range(3), splits=s))()
        for wrong, text in (([1, 3], "sum of splits is greater"), ([3], "expected one for each of 2 ranks"), ([-1, 2], "negative")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                run(lambda s=wrong: hvd.alltoall(tf.range(3), splits=s))()
        with pytest.raises(tf.errors.InvalidArgumentError, match="not divisible by the number of ranks"):
            run(lambda: hvd.alltoall(tf.range(3)))()
        for kind in (tf.int32, tf.uint8):
            _, received = run(lambda k=kind: hvd.alltoall(tf.range(3), splits=tf.constant([1, 2], k)))()
            assert received.numpy().tolist() == [hvd.rank() + 1] * 2
    unknown = tf.function(lambda s: hvd.alltoall(tf.range(3), s)[1], input_signature=[tf.TensorSpec(None, tf.int64)])
    assert unknown(tf.constant([1, 2], tf.int64)).shape == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible"):
        unknown(tf.constant([[1, 2]], tf.int64))
    for root in (0.0, False):
        with pytest.raises(ValueError, match="root_rank=.*: expected a whole number"):
            hvd.broadcast(tf.constant(1.0), root)
    assert hvd.broadcast(tf.constant(hvd.rank()), np.int64(1)) == 1


def check_sparse_and_scaled(hvd, tf):
    """Gradients of embeddings, dense or scaled; what else no other check calls."""
    import keras

    n, r = hvd.size(), hvd.rank()
    for run in (lambda f: f, tf.function):
        a, b = run(lambda: hvd.grouped_reducescatter([tf.range(4.0), tf.fill([2, 1], r + 1)], op=hvd.Sum))()
        assert a.numpy().tolist() == [2.0 * r * n, (2.0 * r + 1) * n] and b.numpy().tolist() == [[3]]
        same = run(lambda: hvd.allreduce(tf.constant([3.0, 4.0]), op=hvd.Adasum))()
        np.testing.assert_allclose(same, [3, 4], rtol=1e-6)  # of equal ones it is their average
        apart = run(lambda: hvd.allreduce(tf.constant([[1.0, 0.0], [0.0, 2.0]])[r], op=hvd.Adasum))()
        np.testing.assert_allclose(apart, [1, 2], rtol=1e-6)  # of orthogonal ones their sum

    table, w = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones(2))
    expected = [[0.5, 0.5], [1.0, 1.0], [0, 0], [0, 0]]

    def gradients(run, **options):
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [r])) * (r + 1.0) + tf.reduce_sum(w) * (r + 1.0)
            return hvd.DistributedGradientTape(tape, **options).gradient(loss, [table, w])

        return run(step)()

    for run in (lambda f: f, tf.function):
        for options in ({}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}):
            of_table, of_w = gradients(run, **options)
            assert isinstance(of_table, tf.IndexedSlices) == (options == {})
            np.testing.assert_allclose(tf.convert_to_tensor(of_table), expected, rtol=1e-6)
            np.testing.assert_allclose(of_w, [1.5, 1.5], rtol=1e-6)
    with pytest.raises(ValueError, match="gradient_predivide_factor is for op=Average"):
        gradients(lambda f: f, gradient_predivide_factor=2.0, op=hvd.Sum)

    @tf.recompute_grad
    def again(x):
        return tf.sin(hvd.allreduce(x * w[0], op=hvd.Sum, name="recomputed"))

    for run in (lambda f: f, tf.function):

        def of_again():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(again(x))
            return tape.gradient(y, x)

        x = tf.constant([0.5, 1.0])
        np.testing.assert_allclose(run(of_again)(), n * np.cos(n * x.numpy()), rtol=1e-5)

    words = np.array([[r, 2], [r, 3]])
    for options in ({}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten(),
                                  keras.layers.Dense(1)])
        before = model.layers[0].get_weights()[0]
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), loss="mse")
        model.fit(words, np.ones((2, 1)), epochs=2, batch_size=2, verbose=0)
        moved = (model.layers[0].get_weights()[0] != before).any(1).tolist()
        assert moved == [True] * 4 + [False], options
        mine = [each.tobytes() for each in model.get_weights()]
        assert hvd.allgather_object(mine) == [mine] * n


def check_saved_layers(hvd, tf):
    """A layer of rueda's in a saved model."""
    import keras
    import rueda.keras

    keras.utils.set_random_seed(4)
    # A folder for each rank: Keras 3.4 and 3.5 write the weights beside the file first, under one name.
    path = pathlib.Path(os.environ["TEST_FOLDER"], f"rank{hvd.rank()}", "model.keras")
    path.parent.mkdir()
    model = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization(momentum=0.5), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    rows = np.arange(12.0).reshape(4, 3) + hvd.rank()
    model.fit(rows, rows[:, :1], verbose=0)
    model.save(path)
    loaded = rueda.keras.load_model(path)
    assert type(loaded.layers[0]) is hvd.SyncBatchNormalization and loaded.layers[0].momentum == 0.5
    for a, b in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(a, b)
    loaded.fit(rows, rows[:, :1], verbose=0)
    mine = [each.tobytes() for each in loaded.get_weights()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()
    np.save(path.with_suffix(".npy"), model.predict(rows, verbose=0))


def everything():
    import rueda.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    for check in (check_collectives, check_order, check_prints, check_names_again, check_gradients, check_gradients_of_constants, check_threads, check_the_rest, check_errors, check_wrong_arguments, check_training, check_keras_layers, check_names, check_splits, check_sparse_and_scaled, check_saved_layers, check_like_horovods):
        check(hvd, tf)
    hvd.shutdown()
    return tf.__version__


PLAIN = """
import sys
sys.modules["rueda"] = None
import keras, numpy as np

class SyncBatchNormalization(keras.layers.BatchNormalization):
    pass

model = keras.models.load_model(sys.argv[1], custom_objects={"SyncBatchNormalization": SyncBatchNormalization})
assert type(model.layers[0]) is SyncBatchNormalization
np.testing.assert_allclose(model.predict(np.arange(12.0).reshape(4, 3), verbose=0), np.load(sys.argv[2]), rtol=1e-5)
"""


def test_everything(tmp_path):
    assert len(results(run_ranks(2, everything, {**QUIET, "TEST_FOLDER": str(tmp_path)}))) == 2
    plain = [sys.executable, "-c", PLAIN, *(tmp_path / "rank0" / f"model.{end}" for end in ("keras", "npy"))]
    done = subprocess.run(plain, env={**os.environ, **QUIET}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def lose_a_rank():
    import rueda.tensorflow as hvd
    import tensorflow as tf

    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="grads"))
    assert step(tf.constant(1.0)) == hvd.size()
    hvd.barrier()
    kill_once_all_are_here(1)
    try:
        step(tf.constant(1.0))
    except tf.errors.AbortedError as error:
        return error.message


def test_a_lost_rank_is_named():
    text = run_ranks(2, lose_a_rank, QUIET).reports[0]["lose_a_rank"]["result"]
    assert "rank 1" in text and "was lost" in text, text


LEAVE = """
import os, sys, threading, time
import rueda
rueda.init()
of_rank_0 = rueda.broadcast_object(os.getpid(), 0)
if rueda.rank() == 0:
    import tensorflow as tf
    import rueda.tensorflow as hvd
    hvd.init()
    threads = []

    def wait(name):
        try:
            tf.function(lambda x: hvd.allreduce(x, name=name))(tf.ones(3)) if name else hvd.allreduce(tf.ones(3))
        except tf.errors.OpError as error:
            print("told:", type(error).__name__, flush=True)

    for name in (None, "in a function"):
        threads.append(threading.Thread(target=wait, args=(name,), daemon=True))
        threads[-1].start()
    from expect import eventually
    inside = ("rueda_same", "quick_execute")  # which call TensorFlow and do not come back
    eventually(lambda: all(sys._current_frames()[each.ident].f_code.co_name in inside for each in threads))
    print("left at:", time.monotonic(), flush=True)
    sys.exit()
from expect import eventually
eventually(lambda: not os.path.exists(f"/proc/{of_rank_0}"))
print("gone at:", time.monotonic(), flush=True)
"""


def test_a_process_ends_with_operations_under_way():
    env = {**QUIET, "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    code, output = launch(2, [sys.executable, "-c", LEAVE], env)
    assert code == 0 and "Traceback" not in output, output
    left, gone = (float(re.search(what + " at: ([0-9.]+)", output)[1]) for what in ("left", "gone"))
    print(f"the process ended {gone - left:.3f} s after sys.exit")
    assert 0 < gone - left < 30  # as any process of TensorFlow ends, on a busy machine


def test_a_script_of_horovod_runs_as_it_is(tmp_path):
    script = pathlib.Path(__file__).with_name("horovod_tensorflow_script.py")
    command = [sys.executable, script, tmp_path / "checkpoint"]
    code, output = launch(2, command, QUIET, options=["--horovod", "--no-prefix"])
    assert code == 0, output
    assert output.count("tape agrees True") == 2 and output.count("keras agrees True") == 2, output
    assert "tape learns True" in output and "keras learns True" in output, output


def test_the_library_needs_no_tensorflow():
    import rueda

    library = pathlib.Path(rueda._ffi.library_path()).with_name("librueda_tf.so")
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "tensorflow" not in said and "stdc++" not in said, said


def test_an_older_tensorflow_is_one_clear_error(tmp_path):
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.11.0'")
    env = {**os.environ, "PYTHONPATH": str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    done = subprocess.run([sys.executable, "-c", "import rueda.tensorflow"], env=env, capture_output=True, text=True)
    assert "ImportError: rueda.tensorflow needs TensorFlow 2.16 or newer, this one is 2.11.0" in done.stderr
