"""rueda.jax: collectives inside and outside of jit, their derivatives, training; one world for most of it."""

import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import rueda
from worlds import kill_once_all_are_here, launch, ranks, run_ranks

pytest.importorskip("jax")
WORLD = "jax"
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_jax.py"


@ranks(2)
def test_allreduce_of_pytrees():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    tree = {"a": jnp.full((3,), r + 1.0), "b": (jnp.int32(r), jnp.zeros((0, 2))), "c": None}
    for run in (lambda f: f, jax.jit):
        out = run(lambda t: hvd.allreduce(t, hvd.Sum))(tree)
        np.testing.assert_array_equal(out["a"], np.full(3, n * (n + 1) / 2))
        assert out["b"][0] == n * (n - 1) // 2 and out["b"][1].shape == (0, 2) and out["c"] is None
    for op, expected in ((hvd.Min, 1), (hvd.Max, n), (hvd.Product, 2), (hvd.Average, (n + 1) / 2)):
        assert hvd.allreduce(jnp.float32(r + 1), op) == expected
    assert hvd.allreduce(jnp.float32(1), hvd.Sum, prescale_factor=2, postscale_factor=3) == 6 * n
    for dtype in ("uint8", "uint16", "uint32", "complex64", "bfloat16", "bool"):
        x = jnp.ones(3, dtype)
        summed = hvd.allreduce(x, hvd.Sum)
        assert summed.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(summed, np.complex64), 1 if dtype == "bool" else n)
    big = jnp.uint32(2**32 - 1 if r else 3)
    turned = jnp.complex64(1 + (r + 1) * 1j)
    for run in (lambda f: f, jax.jit):
        assert int(run(lambda x: hvd.allreduce(x, hvd.Max))(big)) == 2**32 - 1
        assert int(run(lambda x: hvd.allreduce(x, hvd.Min))(big)) == 3
        assert run(hvd.allreduce)(jnp.uint16(65534 if r else 0)) == 32767
        assert run(lambda x: hvd.allreduce(x, hvd.Product))(turned) == -1 + 3j
        assert run(hvd.allreduce)(turned) == 1 + 1.5j
        with pytest.raises(ValueError, match="allreduce: max of complex64 .* have no order"):
            run(lambda x: hvd.allreduce(x, hvd.Max))(turned)
        with pytest.raises(ValueError, match="float8_e5m2 tensors on the CPU are moved"):
            run(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.ones(2, "float8_e5m2"))
        with pytest.raises(Exception, match="Mismatched data types.*rank 0 sent int32.*rank 1 sent uint32"):
            jax.block_until_ready(run(lambda x: hvd.allreduce(x, name="sign"))(jnp.uint32(1) if r else jnp.int32(1)))
    def loss(x):
        return jnp.abs(hvd.allreduce(x, hvd.Sum) * (2 - 1j)).sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.complex64(3 + 4j)), n * 5**0.5 * (3 - 4j) / 5, rtol=1e-6)


@ranks(2)
def test_the_others():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    for run in (lambda f: f, jax.jit):
        rows = run(lambda x: hvd.allgather(x))(jnp.full((2, 3), r))
        np.testing.assert_array_equal(rows[:, 0], np.repeat(np.arange(n), 2))
        got = run(lambda x: hvd.broadcast(x, 1))({"x": jnp.full(2, r), "y": jnp.uint32(r + 7)})
        assert got["x"].tolist() == [1, 1] and got["y"] == 8
        parts = run(lambda x: hvd.alltoall(x))(jnp.arange(n) + 10 * r)
        np.testing.assert_array_equal(parts, 10 * np.arange(n) + r)
        mine = run(lambda x: hvd.reducescatter(x, hvd.Sum))(jnp.arange(3.0))
        np.testing.assert_array_equal(mine, [[0, n], [2 * n]][r])
    uneven = hvd.allgather(jnp.full((r + 1, 2), float(r)))
    np.testing.assert_array_equal(uneven[:, 1], [0, 1, 1])
    keys = hvd.allgather(jnp.full((1,), r + 1j, "complex64"))
    np.testing.assert_array_equal(keys, np.arange(n) + 1j)
    with pytest.raises(ValueError, match="needs a first one"):
        hvd.allgather(jnp.float32(0))
    with pytest.raises(ValueError, match="cannot be divided"):
        hvd.alltoall(jnp.zeros(3))
    assert hvd.broadcast_object({"rank": r}, 1) == {"rank": 1}
    assert hvd.allgather_object(r) == list(range(n))
    params = {"key": jax.random.key(r), "raw": jax.random.PRNGKey(r), "w": jnp.full(2, float(r))}
    params = hvd.broadcast_parameters(params, 1)
    assert jax.random.key_data(params["key"]).tolist() == [0, 1] == params["raw"].tolist()
    assert params["w"].tolist() == [1, 1]
    one = [jnp.full(2, r + 1.0), {"x": jnp.full(4, r + 1.0)}]
    assert jax.tree.map(list, hvd.grouped_allreduce(one, hvd.Sum)) == [[3, 3], {"x": [3] * 4}]
    assert hvd.grouped_allgather([jnp.full(1, r)])[0].tolist() == [0, 1]
    assert hvd.grouped_reducescatter([jnp.ones(2)], hvd.Sum)[0].tolist() == [2]


NARROW = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
          "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float8_e4m3fn", "bool", "int8")  # fmt: skip


@ranks(2)
def test_parameters_of_every_dtype_arrive_bit_by_bit():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    def every_value(dtype, order):
        """All that a type of up to 8 bits has, not-a-numbers too."""
        bits = {"2": 2, "4": 4}.get(re.search(r"[a-z]+(\d?)", dtype)[1], 8) if dtype != "bool" else 1
        kind = np.uint8 if bits in (1, 8) or dtype.startswith("float") else f"uint{bits}"
        values = jnp.asarray(np.arange(2**bits, dtype=np.uint8)[::order])
        if dtype.startswith("float"):
            values = values if bits == 8 else values.astype(f"uint{bits}")
            return jax.lax.bitcast_convert_type(values, dtype)
        return values.astype(kind).astype(dtype)

    def bits_of(array):
        return np.asarray(array).view(np.uint8).tolist()

    mine = {dtype: every_value(dtype, -1 if hvd.rank() else 1) for dtype in NARROW}
    mine["numpy"] = np.asarray(mine["int4"])
    for run in (lambda f: f, jax.jit):
        got = run(lambda tree: hvd.broadcast_parameters(tree, 1))(mine)
        for dtype, each in got.items():
            assert each.dtype == mine[dtype].dtype and isinstance(each, jax.Array)
            wanted = every_value("int4" if dtype == "numpy" else dtype, -1)
            assert bits_of(each) == bits_of(wanted) and len(set(bits_of(each))) == len(wanted), dtype


@ranks(2)
def test_alltoall_with_splits():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    r = hvd.rank()
    x = {"a": jnp.arange(3) + 10 * r, "b": jnp.full((3, 2), r, "bfloat16")}
    for splits in ([1, 2], jnp.array([1, 2]), np.array([1, 2], np.uint8)):
        got, received = hvd.alltoall(x, splits, name="uneven")
        assert got["a"].tolist() == ([0, 10] if r == 0 else [1, 2, 11, 12])
        assert got["b"].dtype == "bfloat16" and got["b"][:, 1].tolist() == [0] * (r + 1) + [1] * (r + 1)
        assert received.tolist() == [r + 1] * 2 and received.dtype == "int32"
    x = x["a"]
    for run in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x)[0].sum())):
        with pytest.raises(ValueError, match="with splits.*call it outside of them, or fill all parts up"):
            run(lambda x: hvd.alltoall(x, splits=[1, 2]))(x.astype(jnp.float32))
    for wrong in ([1.0, 2.0], [True, True], [[1, 2]], [3], ["a", "b"], [-1, 2], 3):
        with pytest.raises(ValueError, match="expected a number of rows for each of the 2 ranks"):
            hvd.alltoall(x, wrong)
    with pytest.raises(ValueError, match="are 7 rows, of an array that has 3"):
        hvd.alltoall([x, x], [3, 4])
    assert hvd.alltoall(x[:2]).tolist() == [r, 10 + r]


@ranks(2)
def test_roots_and_operations_are_whole_numbers():
    """An equal one of another type would be found in JAX's caches for the next call."""
    import jax
    import jax.numpy as jnp
    import optax
    import rueda.jax as hvd

    x = jnp.full(3, float(hvd.rank()))
    for run in (lambda f: f, jax.jit):
        for wrong in (0.0, False, "0", None, np.float32(0), np.bool_(False)):
            with pytest.raises(ValueError, match="root_rank=.*: expected a whole number"):
                run(lambda x, root=wrong: hvd.broadcast(x, root))(x)
        for wrong in (True, 1.0, None):
            with pytest.raises(ValueError, match="op=.*: expected a whole number"):
                run(lambda x, op=wrong: hvd.allreduce(x, op))(x)
        for root in (np.int64(0), 0, jnp.int32(0)):
            assert run(lambda x, root=root: hvd.broadcast(x, root))(x).tolist() == [0] * 3
        assert run(lambda x: hvd.allreduce(x, np.int32(hvd.Sum)))(x).tolist() == [1] * 3
    for op in (hvd.Product, hvd.Min, hvd.Max):
        for make in (lambda op: hvd.DistributedOptimizer(optax.sgd(1.0), op=op), lambda op: hvd.value_and_grad(sum, op=op)):
            with pytest.raises(ValueError, match="reduced by Average, Sum or Adasum"):
                make(op)


@ranks(2)
def test_transformations():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax import lax

    n, r = hvd.size(), hvd.rank()
    x = jnp.arange(4.0) + r
    weight = r + 1.0
    total = n * (n + 1) / 2

    def loss(f):
        return lambda x: (f(x) * weight).sum()

    for run in (lambda f: f, jax.jit):
        grad = run(jax.grad(loss(lambda x: hvd.allreduce(x, hvd.Sum))))(x)
        np.testing.assert_array_equal(grad, np.full(4, total))
        grad = run(jax.grad(loss(jax.checkpoint(lambda x: jnp.sin(hvd.allreduce(x, hvd.Sum))))))(x)
        summed = n * np.arange(4.0) + n * (n - 1) / 2
        np.testing.assert_allclose(grad, np.cos(summed) * total, rtol=1e-6)
        grad = run(jax.grad(loss(lambda x: hvd.allgather(x))))(x)
        np.testing.assert_array_equal(grad, np.full(4, total / n))
        grad = run(jax.grad(loss(lambda x: hvd.broadcast(x, 1))))(x)
        np.testing.assert_array_equal(grad, np.full(4, total / n if r == 1 else 0))
        grad = run(jax.grad(loss(lambda x: hvd.alltoall(x))))(x)
        np.testing.assert_array_equal(grad, [1, 1, 2, 2])
        grad = run(jax.grad(loss(lambda x: hvd.reducescatter(x, hvd.Sum))))(x)
        np.testing.assert_array_equal(grad, np.array([1, 1, 2, 2]) * n)
        _, tangent = run(lambda x: jax.jvp(lambda x: hvd.allreduce(x), (x,), (x,)))(x)
        np.testing.assert_array_equal(tangent, np.arange(4) + (n - 1) / 2)

    def step(carry, _):
        carry = hvd.allreduce(carry + 1, hvd.Average)
        return carry, carry

    _, steps = jax.jit(lambda c: lax.scan(step, c, None, 3))(jnp.float32(r))
    np.testing.assert_array_equal(steps, 1 + (n - 1) / 2 + np.arange(3))
    count = jax.jit(
        lambda c: lax.while_loop(lambda c: c < 10, lambda c: hvd.allreduce(c + 1, hvd.Sum), c)
    )(jnp.float32(0))
    assert count == 14
    taken = jax.jit(lambda p, x: lax.cond(p, lambda x: hvd.allreduce(x, hvd.Sum), lambda x: x, x))
    assert taken(True, x)[0] == 1 and taken(False, x)[0] == r
    batched = jax.vmap(lambda x: hvd.allgather(x), in_axes=1, out_axes=1)(jnp.full((2, 3), r))
    assert batched.shape == (2 * n, 3) and batched[-1, 0] == n - 1
    twice = jax.jit(jax.linear_transpose(lambda x: hvd.allreduce(x, hvd.Sum), x))(x)[0]
    np.testing.assert_array_equal(twice, n * np.arange(4) + n * (n - 1) / 2)
    with pytest.raises(NotImplementedError, match="op=Average and op=Sum only"):
        jax.grad(loss(lambda x: hvd.allreduce(x, hvd.Max)))(x)
    for collective, op in ((hvd.allreduce, hvd.Product), (hvd.reducescatter, hvd.Min)):
        result = collective(x, op)
        with pytest.raises(NotImplementedError, match="op=Average and op=Sum only"):
            jax.linear_transpose(lambda x, collective=collective, op=op: collective(x, op), x)(result)


@ranks(2)
def test_rows_of_unequal_number_where_calls_run_at_once():
    """In derivatives and batches without a program too; where shapes are fixed first, it is one error on all ranks."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    x = jnp.arange(4.0)[: r + 2]
    scale = np.arange(1.0, 2 * n + 2)  # of the rows that come

    def loss(x):
        return (hvd.allgather(x, name="rows") ** 2 * scale).sum() * (r + 1)

    mean = (n + 1) / 2
    mine = scale[2 * r :][: r + 2]
    grad = 2 * np.asarray(x) * mine * mean
    value, back = jax.vjp(loss, x)
    np.testing.assert_allclose(value, (np.array([0, 1, 0, 1, 2]) ** 2 * scale).sum() * (r + 1))
    for found in (jax.grad(loss)(x), back(1.0)[0], jax.jvp(jax.grad(loss), (x,), (x,))[1]):
        np.testing.assert_allclose(found, grad, rtol=1e-6)
    np.testing.assert_allclose(jax.linearize(loss, x)[1](x), 2 * value)
    _, tangent = jax.jvp(hvd.allgather, (x,), (2 * x,))
    assert tangent.tolist() == [0, 2, 0, 2, 4]
    batch = jax.vmap(hvd.allgather, in_axes=1, out_axes=1)(jnp.stack([x, 3 * x], 1))
    assert batch.T.tolist() == [[0, 1, 0, 1, 2], [0, 3, 0, 3, 6]]
    for program in (jax.jit(hvd.allgather), jax.grad(lambda x: jax.jit(hvd.allgather)(x).sum()), jax.grad(jax.checkpoint(lambda x: hvd.allgather(x).sum()))):
        with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*rows"):
            jax.block_until_ready(program(x))


@ranks(2)
def test_ranks_with_fewer_steps_join():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    wide = jnp.ones((500, 500))
    step = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum, name="uneven"))
    late = jax.jit(lambda x: hvd.allreduce(jnp.sin(x @ x @ x @ x) * 0 + 1, hvd.Sum, name="late")[0, 0])
    for epoch in range(2):
        first = epoch % n  # to join
        for _ in range(2):
            assert step(jnp.float32(r + 1)) == 3
        last = late(wide)  # which is under way, and on one rank nobody holds what it gives
        if r == first:
            del last
        else:
            assert last == n and step(jnp.float32(5)) == 5 == hvd.allreduce(jnp.float32(5), hvd.Sum)
            assert hvd.allreduce(jnp.float32(5)) == 2.5 and hvd.allreduce(jnp.int32(5), hvd.Min) == 5
            for run in (lambda f: f, jax.jit):
                tree = run(lambda t: hvd.allreduce(t, hvd.Sum))([jnp.ones(2), jnp.ones(3)])
                assert jax.tree.map(list, tree) == [[1, 1], [1, 1, 1]]
                assert run(lambda x: hvd.reducescatter(x, hvd.Sum))(jnp.arange(4.0)).tolist() == [[0, 1], [2, 3]][r]
                assert run(lambda x: hvd.broadcast(x, r))(jnp.ones(2)).tolist() == [1, 1]
                with pytest.raises(jax.errors.JaxRuntimeError, match=f"its root, rank {first} .*has joined"):
                    jax.block_until_ready(run(lambda x: hvd.broadcast(x, first))(jnp.ones(2)))  # noqa: B023
            rows = hvd.allgather({"a": jnp.full((2, 3), r), "b": jnp.arange(3)}, name="of.one")
            assert rows["a"].tolist() == [[r] * 3] * 2 and rows["b"].tolist() == [0, 1, 2]
            with pytest.raises(ValueError, match="a rank has joined.*call it outside"):
                jax.grad(lambda x: hvd.allgather(x).sum())(jnp.ones(2))
            for collective in (hvd.allgather, hvd.alltoall):
                with pytest.raises(jax.errors.JaxRuntimeError, match="has joined|rows"):
                    jax.block_until_ready(jax.jit(collective)(jnp.ones(2)))
            assert hvd.alltoall(jnp.arange(3), [1, 2])[1].tolist() == [0, 2] if r else [1, 0]
            hvd.barrier()
        for run in (jax.jit, jax.vmap, jax.grad):
            with pytest.raises(ValueError, match="join: .*behind the loop over the data"):
                run(lambda x: x + hvd.join())(wide[0] if run is jax.vmap else 1.0)
        assert hvd.join() == 1 - first
        assert step(jnp.float32(1)) == n


@ranks(2, 3)
def test_a_loader_with_jax_arrays_joins_and_the_others_make_the_last_step():
    """Training on all ranks is that of one process on their samples, the last step included, of which only rank 0 has one."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from rueda.data import Arrays, DataLoader

    n, r = hvd.size(), hvd.rank()
    samples = 8 * n + 1
    x = np.random.default_rng(1).normal(size=(samples, 3)).astype(np.float32)
    source = Arrays(x, x @ np.arange(3, dtype=np.float32))
    wide = jnp.ones((500, 500))

    def loss(w, xs, ys, weight, late):
        return ((xs @ w - ys) ** 2).mean() * weight + 0 * late

    @jax.jit
    def uneven_step(w, xs, ys, weight):
        late = jnp.sin(wide @ wide @ wide @ wide)[0, 0]  # so that the step is under way when the loop ends
        gradient = jax.grad(loss)(w, xs, ys, weight, late)
        seen = hvd.allreduce(jnp.float32(len(xs)) + 0 * late, hvd.Sum)
        return w - 0.05 * hvd.allreduce(gradient), seen

    together, alone = jnp.zeros(3), jnp.zeros(3)
    loader = DataLoader(source, 4, uneven="join", to="jax", seed=2)
    for _ in range(2):
        seen = []
        for xs, ys in loader:
            assert isinstance(xs, jax.Array)
            together, more = uneven_step(together, xs, ys, loader.weight)
            seen.append(more)
        assert loader.joined == 0
        together = hvd.broadcast_parameters(together, loader.joined)
        assert [int(each) for each in seen] == [4 * n, 4 * n, 1][: 3 if r == 0 else 2]
    whole = DataLoader(source, 4 * n, uneven="join", to="jax", seed=2, place=(0, 1))
    for _ in range(2):
        for xs, ys in whole:
            alone -= 0.05 * jax.grad(loss)(alone, xs, ys, 1.0, 0.0)
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_second_derivatives():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    mine = np.arange(4.0) / 4 + r
    total, root = n * np.arange(4) / 4 + n * (n - 1) / 2, np.arange(4) / 4
    x = jnp.asarray(mine, jnp.float32)
    collectives = {  # and the diagonal of the hessian of the sum of its sines
        "allreduce": (lambda x: hvd.allreduce(x, hvd.Sum), -n * n * np.sin(total)),
        "average": (lambda x: hvd.allreduce(x, name="mean"), -np.sin(total / n)),
        "reducescatter": (lambda x: hvd.reducescatter(x, hvd.Sum), -n * n * np.sin(total)),
        "alltoall": (hvd.alltoall, -np.sin(mine)),
        "allgather": (hvd.allgather, -np.sin(mine)),
        "broadcast": (lambda x: hvd.broadcast(x, 0), -np.sin(root) * (r == 0)),
    }
    for name, (collective, diagonal) in collectives.items():
        def f(x, collective=collective):
            return jnp.sin(collective(x)).sum()

        ways = [jax.hessian(f)]
        if name not in ("allgather", "broadcast"):  # whose backward averages, twice
            ways.append(jax.jacrev(jax.grad(jax.checkpoint(f))))
        for way in ways:
            np.testing.assert_allclose(jax.jit(way)(x), np.diag(diagonal), rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(jax.hessian(f)(x), np.diag(diagonal), rtol=1e-5, atol=1e-6)  # not jitted

    def thrice(x):
        return jax.lax.scan(lambda c, _: (hvd.allreduce(c * c, hvd.Average), None), x, None, 2)[0].sum()

    np.testing.assert_allclose(jnp.diag(jax.jit(jax.hessian(thrice))(jnp.ones(2))), 12)


@ranks(2)
def test_named_pytrees_of_different_sizes_are_an_error_on_all():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    for run in (lambda f: f, jax.jit):
        for few, many in ((1, 2), (2, 3)):
            tree = [jnp.ones(4)] * (many if hvd.rank() else few)
            other = "outside a group" if few == 1 else f"of {few}"
            for collective in (hvd.allreduce, hvd.reducescatter, hvd.alltoall, lambda x, name: hvd.broadcast(x, 0, name=name)):
                with pytest.raises(jax.errors.JaxRuntimeError, match=f"Mismatched groups.*{other}.*of {many}"):
                    jax.block_until_ready(run(lambda t, f=collective: f(t, name="tree"))(tree))
        with pytest.raises(jax.errors.JaxRuntimeError, match="^FAILED_PRECONDITION.*Mismatched"):
            jax.block_until_ready(run(lambda t: hvd.allgather(t, name="rows"))(tree))
        for name in ("bare", None):  # an array alone against a list of two, and of one, which is the same
            both = jnp.ones(4) if hvd.rank() else [jnp.ones(4)] * 2
            with pytest.raises(jax.errors.JaxRuntimeError, match="Mismatched groups.*in group.*of 2.*outside a group"):
                jax.block_until_ready(run(lambda t, name=name: hvd.allreduce(t, name=name))(both))
            one = jnp.ones(4) if hvd.rank() else [jnp.ones(4)]
            (met,) = jax.tree.leaves(run(lambda t, name=name: hvd.allreduce(t, hvd.Sum, name=name))(one))
            assert met.tolist() == [2.0] * 4


@ranks(2)
def test_a_call_outside_of_jit_that_comes_again_is_short():
    """A program is found by the arrays' types: they are not converted and looked at each time."""
    import sys

    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    x, tree = jnp.float32(1), {"a": jnp.ones(2), "b": [jnp.ones(3), jnp.int32(2), None]}
    calls = (
        lambda: hvd.allreduce(x, hvd.Sum, name="short"),
        lambda: hvd.allreduce(x),
        lambda: hvd.allreduce(tree, hvd.Sum),
        lambda: hvd.broadcast(tree, 1),
        lambda: hvd.reducescatter(tree["a"], hvd.Sum),
        lambda: hvd.alltoall(tree["a"], name="parts"),
    )
    for call in calls:
        first = jax.tree.map(np.asarray, call())
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)  # noqa: B023
        try:
            again = call()
        finally:
            sys.setprofile(None)
        assert len(called) <= 30, called
        jax.tree.map(np.testing.assert_array_equal, first, again)
    with jax.disable_jit():
        assert hvd.allreduce(x, hvd.Sum, name="short") == hvd.size()
    for wrong in (jnp.ones(3), np.ones(3), [jnp.ones(2), jnp.ones(5)]):  # looked at each time, as none of them becomes a program
        for _ in range(2):
            with pytest.raises(ValueError, match="rows cannot be divided by 2 ranks"):
                hvd.alltoall(wrong)
    # What is no number on one rank alone is its error, and not a second call that nobody meets.
    last = jnp.asarray(np.array([0, np.nan if hvd.rank() == 0 else 1], np.float32))
    with jax.debug_nans(True):
        if hvd.rank() == 0:
            assert hvd.alltoall(last).tolist() == [0, 0]
        else:
            with pytest.raises(FloatingPointError):
                hvd.alltoall(last)
        assert hvd.allreduce(x, hvd.Sum, name="short") == hvd.size()

    class Own:  # a tree whose form no program can be found by
        def __init__(self, array, note):
            self.array, self.note = array, note

    jax.tree_util.register_pytree_node(Own, lambda own: ([own.array], own.note), lambda note, leaves: Own(leaves[0], note))
    tree = Own(jnp.ones(2), [jnp.ones(1)])
    for _ in range(2):
        of_others = memoryview(np.ones(2, np.float32))
        assert hvd.allreduce(tree, hvd.Sum).array.tolist() == [2, 2] == hvd.allreduce(of_others, hvd.Sum).tolist()
    # Derivatives outside of jit meet such calls.
    if hvd.rank() == 0:
        assert hvd.allreduce(x, hvd.Sum) == hvd.size()
    else:
        assert jax.vjp(lambda x: hvd.allreduce(x, hvd.Sum), x)[0] == hvd.size()


@ranks(2)
def test_one_function_twice():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax_programs import calls_of

    n, r = hvd.size(), hvd.rank()
    inner = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    program = jax.jit(lambda x: (inner(x), inner(x * 10), inner(x * 100)))
    (names,) = calls_of(program, jnp.float32(1))
    assert len(set(names)) == 3 == len(names)
    for _ in range(20):
        assert [float(each) for each in program(jnp.float32(1))] == [n, 10 * n, 100 * n]
    if r == 0:  # nobody else traces: nothing shifts
        jax.eval_shape(inner, jnp.zeros(7))
        jax.make_jaxpr(lambda x: hvd.allreduce(x))(jnp.zeros(7))
    assert inner(jnp.float32(1)) == n
    with pytest.raises(ValueError, match="'w' stands twice in one program"):
        jax.jit(lambda x: hvd.allreduce(x, name="w") + hvd.allreduce(x, name="w")).lower(1.0)
    # One program several times at once: the next waits behind the first.
    running = [inner(jnp.float32(i)) for i in range(30)]
    assert [float(each) for each in running] == [n * i for i in range(30)]


@ranks(2)
def test_disagreement_names_both_and_the_job_goes_on():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*rank") as failed:
        jax.jit(lambda x: hvd.allreduce(x, name="unequal"))(jnp.zeros(2 + hvd.rank())).block_until_ready()
    assert "unequal" in str(failed.value)
    assert hvd.allreduce(jnp.float32(1), hvd.Sum) == hvd.size()
    only = hvd.add_process_set([hvd.size() - 1])
    if only.included():
        assert hvd.allreduce(jnp.float32(3), hvd.Sum, process_set=only) == 3
    else:
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(jnp.float32(3), hvd.Sum, process_set=only)
    hvd.remove_process_set(only)


@ranks(2)
def test_errors_of_programs_that_ran_before_are_jaxs_own():
    """Of small ones, which XLA runs at once, of larger ones, and outside of jit."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    for length in (1, 400, 600, 5000):
        numbers = jnp.arange(float(length))
        name = f"error.{length}"

        def reduce(x, name=name):
            return hvd.allreduce(x, hvd.Sum, name=name)

        for program in (reduce, jax.jit(lambda x, f=reduce, n=numbers: f(x) + (x[0] * n).sum())):
            for _ in range(3):
                jax.block_until_ready(program(jnp.ones(2)))
            rows = 2 if hvd.rank() == 0 else 3  # rank 0 runs what it has run before
            with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*sent float32"):
                jax.block_until_ready(program(jnp.ones(rows)))


@ranks(2)
def test_small_programs_are_started_without_pythons_path_and_fail_as_jax_does():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax._src.interpreters import pxla

    def two(x):
        first = hvd.allreduce(x, hvd.Sum, name="first")
        return hvd.allreduce(first * 2, hvd.Sum, name="second")

    def other(x):  # its second one has no partner on the other rank
        return hvd.allreduce(x, hvd.Sum, name="first")

    kinds = [jax.jit(two), jax.jit(two).lower(jnp.ones(2)).compile()]
    others = jax.jit(other)
    called = []
    in_python = pxla.ExecuteReplicated.__call__

    def counted(self, *args):
        called.append(self)
        return in_python(self, *args)

    for program in kinds:
        for _ in range(2):
            assert program(jnp.ones(2)).tolist() == [8, 8]
            others(jnp.ones(3))
        pxla.ExecuteReplicated.__call__ = counted
        try:
            program(jnp.ones(2))
            others(jnp.ones(3))
        finally:
            pxla.ExecuteReplicated.__call__ = in_python
        assert called == []
        # The error comes from the very call, also where C calls; nothing of the program comes after it.
        for call in (lambda f, x: f(x), lambda f, x: list(map(f, [x]))):
            with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION: .*'first'.*sent float32") as failed:
                call(*((program, jnp.ones(2)) if hvd.rank() == 0 else (others, jnp.ones(3))))
            assert "\n" not in str(failed.value)
            assert program(jnp.ones(2)).tolist() == [8, 8]
    with jax.debug_nans(True):
        with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION"):
            kinds[0](jnp.ones(2)) if hvd.rank() == 0 else others(jnp.ones(3))
        assert kinds[0](jnp.ones(2)).tolist() == [8, 8]
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        kinds[0](jnp.array([jnp.nan, 1.0]))


@ranks(2)
def test_a_loop_whose_end_depends_on_a_failed_collective_ends():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    def grow(x):
        return jax.lax.while_loop(lambda x: x[0] < 100, lambda x: hvd.allreduce(x, hvd.Sum, name="grow"), x)

    grown = jax.jit(grow)
    for _ in range(3):
        assert grown(jnp.ones(1)).tolist() == [128]
    grown(jnp.full(2, 100.0))  # lowered, and never reduced
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*sent float32"):
            jax.block_until_ready(grown(jnp.zeros(1 + hvd.rank())))


@ranks(2, 3)
def test_a_flax_model_stays_the_same_on_all_ranks():
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    import rueda.jax as hvd

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.relu(nn.Dense(16)(x)))

    model = Model()
    params = model.init(jax.random.key(hvd.rank()), jnp.zeros((1, 8)))
    params = hvd.broadcast_parameters(pytree=params, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optax_tx=optax.adam(1e-2))
    slow = hvd.DistributedOptimizer(optax.sgd(1e-2), every_k=2, compression=hvd.Compression.bf16)
    state, slow_state = optimizer.init(params), slow.init(params)

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

    @jax.jit
    def step(params, state, slow_state, key):
        x = jax.random.normal(key, (16, 8))
        value, grads = jax.value_and_grad(loss)(params, x, jnp.argmax(x[:, :3], 1))
        updates, state = optimizer.update(grads, state, params)
        more, slow_state = slow.update(grads, slow_state, params)
        return optax.apply_updates(optax.apply_updates(params, updates), more), state, slow_state, value

    losses = []
    for i in range(100):
        key = jax.random.fold_in(jax.random.key(1000 + hvd.rank()), i)
        params, state, slow_state, value = step(params, state, slow_state, key)
        losses.append(float(value))
    assert losses[-1] < losses[0] / 2
    bits = [np.asarray(each).tobytes() for each in jax.tree.leaves((params, state))]
    assert all(each == bits for each in hvd.allgather_object(bits))
    x = jnp.full((4, 8), 1.0 + hvd.rank())
    _, grads = jax.jit(hvd.value_and_grad(loss))(params, x, jnp.zeros(4, int))
    mine = jax.grad(loss)(params, x, jnp.zeros(4, int))
    mean = jax.tree.map(lambda *g: sum(g) / hvd.size(), *hvd.allgather_object(jax.device_get(mine)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, mean)


def lose_a_rank():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    step = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum, name="grads"))
    assert step(jnp.float32(1)) == hvd.size()
    hvd.barrier()
    kill_once_all_are_here(1)
    texts = []
    by_host = [lambda: hvd.allgather(jnp.ones(3)), lambda: hvd.alltoall(jnp.ones(2), [1, 1]), hvd.barrier, lambda: hvd.allgather_object(1)]
    for call in [lambda: step(jnp.float32(1)).block_until_ready(), *by_host]:
        with pytest.raises(jax.errors.JaxRuntimeError) as failed:
            call()
        texts.append(str(failed.value))
    assert failed.value.rank == 1 and type(pickle.loads(pickle.dumps(failed.value))) is hvd.RankLostError
    return texts


def test_a_lost_rank_is_unavailable_and_named():
    outcome = run_ranks(2, lose_a_rank)
    texts = outcome.reports[0]["lose_a_rank"]["result"]
    assert re.match("UNAVAILABLE: (allreduce 'grads': )?rank 1 .* was lost", texts[0]), texts
    assert len(texts) == 5 and all(re.match("UNAVAILABLE: .*rank 1 .* was lost", text) for text in texts), texts


LEAVE = """
import os, sys, threading, time
import jax, jax.numpy as jnp
import rueda.jax as hvd
hvd.init()
of_rank_0 = hvd.broadcast_object(os.getpid(), 0)
if hvd.rank() == 0:
    x = jnp.ones((500, 500))  # JAX waits for small computations itself
    begun = threading.Semaphore(0)
    kept = []

    def wait(name, x):
        pending = jax.jit(lambda x: hvd.allreduce(x @ x, name=name))(x)
        begun.release()
        try:
            pending.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            print("told:", str(error)[:9], flush=True)

    def leave_behind():
        kept.append(jax.jit(lambda x: hvd.allreduce(x @ x, name="left behind"))(x))
        begun.release()

    pending = jax.jit(lambda x: hvd.allreduce(x @ x, name="alone"))(x)
    threading.Thread(target=wait, args=("waited for", x), daemon=True).start()
    threading.Thread(target=leave_behind).start()
    begun.acquire(), begun.acquire()
    print("pending:", not pending.is_ready(), flush=True)
    print("left at:", time.monotonic(), flush=True)
    sys.exit()
from expect import eventually
eventually(lambda: not os.path.exists(f"/proc/{of_rank_0}"))
print("gone at:", time.monotonic(), flush=True)
"""


def test_a_process_ends_with_operations_of_all_threads_under_way():
    env = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
    code, output = launch(2, [sys.executable, "-c", LEAVE], env)
    assert code == 0 and "pending: True" in output and "Traceback" not in output, output
    left, gone = (float(re.search(what + " at: ([0-9.]+)", output)[1]) for what in ("left", "gone"))
    print(f"the process ended {gone - left:.3f} s after sys.exit")
    assert 0 < gone - left < 10  # a busy machine; quiet: docs/jax.md
    # The second: of one that XLA had not begun yet.
    assert "told: CANCELLED" in output or "told: FAILED_PR" in output, output


TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
import pytest
import rueda.jax as hvd
from jax.sharding import Mesh, NamedSharding, PartitionSpec

hvd.init()
assert len(jax.local_devices()) == 2
mesh = Mesh(np.array(jax.devices()), "all")
part = PartitionSpec("all")
x = jax.device_put(jnp.ones(4), NamedSharding(mesh, part))

def in_shards(f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=part, out_specs=part, check_vma=False))

def barrier(x):
    hvd.barrier()
    return x

def attend(x):
    q = x.reshape(1, -1, 1, 1)
    return hvd.attention.ring_attention(q, q, q).reshape(x.shape)

for program in (hvd.allreduce, jax.jit(hvd.allreduce)):
    with pytest.raises(ValueError, match="rueda.jax: this computation is spread over 2 devices.*outside of it"):
        program(x)
for program in (in_shards, jax.pmap):
    with pytest.raises(ValueError, match="rueda.jax: .* 2 devices of this process.*start a rank for each device"):
        program(hvd.allreduce)(x if program is in_shards else x.reshape(2, 2))
for ordered in (barrier, attend):
    for program in (jax.jit, in_shards, jax.pmap):
        with pytest.raises(ValueError, match="rueda.jax: .* 2 devices, where messages, .*call them outside of it"):
            program(ordered)(x.reshape(2, 2) if program is jax.pmap else x)
one = jax.device_put(jnp.ones(4), jax.devices()[1])
assert jax.jit(hvd.allreduce)(one).tolist() == [1] * 4 == jax.jit(barrier)(one).tolist()
"""


def test_several_devices_of_a_process_are_one_clear_error():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_learns_the_digits():
    code, output = launch(2, [sys.executable, EXAMPLE, "--epochs", "4"], options=["--no-prefix"])
    assert code == 0, output
    assert float(output.split("test accuracy ")[1].split()[0]) > 0.85, output
    assert len(set(re.findall(r"parameter hash rank \d (\w+)", output))) == 1, output


def test_importing_starts_nothing_and_needs_neither_jaxlib_nor_python():
    code = "import threading, rueda.jax as hvd; print(hvd.is_initialized(), threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]
    library = pathlib.Path(rueda._ffi.library_path()).with_name("librueda_xla.so")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"NEEDED.*\[(.*)\]", needed))
    assert found <= {"librueda.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}, found


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"jax.py": "__version__ = '0.4.30'"}, "ImportError: rueda.jax needs JAX 0.10 or newer, this one is 0.4.30"),
        ({"jaxlib/__init__.py": "", "jaxlib/version.py": "__version__ = '0.4.30'"}, "ImportError: rueda.jax: this JAX and its jaxlib do not fit"),
    ],
    ids=["jax", "jaxlib"],
)
def test_an_older_jax_is_one_clear_error(tmp_path, there, said):
    for name, text in there.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", "import rueda.jax"], env=env, capture_output=True, text=True)
    assert said in done.stderr, done.stderr
