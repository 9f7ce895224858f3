"""Collectives of one program that come in another order on another rank; see rueda/jax/_merge.py."""

import pytest
from worlds import ranks

pytest.importorskip("jax")
WORLD = "jax"


def reversed_on_one_rank(count, of):
    """A program of independent collectives ``of(x, i)``; their results in the same order on all ranks."""
    import jax.numpy as jnp
    import rueda.jax as hvd

    def program(x):
        order = range(count) if hvd.rank() == 0 else reversed(range(count))
        out = {i: of(x, i) for i in order}
        return jnp.stack([out[i] for i in range(count)])

    return program


@ranks(2)
def test_independent_collectives_are_one_call_in_any_order():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd
    from jax_programs import calls_of

    n = hvd.size()
    inner = jax.jit(lambda x, i: hvd.allreduce(jax.jit(jnp.sin)(x) + i, hvd.Sum))

    def plain(x, i):
        return hvd.allreduce(x + i, hvd.Sum, name=f"of.{i}")

    def inside(x, i):  # x differs: what XLA fuses cannot order them
        named = jax.jit(lambda x: hvd.allreduce(x + i, hvd.Sum, name=f"of.{i}"))
        return jax.jit(lambda x: named(x))(x)

    def derived(x, i):
        f = jax.custom_vjp(lambda x: plain(x, i))
        f.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
        return jax.checkpoint(f)(x)

    for of in (plain, inside, derived):
        for count, shape in ((8, ()), (2, (4096,)), (3, (100,))):
            program = jax.jit(reversed_on_one_rank(count, of))
            x = jnp.zeros(shape)
            (call,) = calls_of(program, x)
            assert sorted(call) == [f"of.{i}" for i in range(count)]
            expected = n * np.arange(count).reshape((count,) + (1,) * len(shape))
            np.testing.assert_array_equal(program(x), np.broadcast_to(expected, (count, *shape)))
    several = jax.jit(lambda x: [inner(x, i) for i in range(3)])
    (call,) = calls_of(several, 0.0)
    assert len(set(call)) == 3
    assert [float(each) for each in several(0.0)] == [0, n, 2 * n]


@ranks(2)
def test_what_depends_on_another_comes_after_it():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax_programs import calls_of

    n = hvd.size()

    @jax.jit
    def program(x):
        a = hvd.allreduce(x, hvd.Sum, name="a")
        b = jax.jit(lambda a: hvd.allreduce(jnp.cos(a) * 0 + 2, hvd.Sum, name="b"))(a)
        c = hvd.allreduce({"x": x * 3, "y": x}, hvd.Sum, name="c")
        d = hvd.allgather(c["x"][None] + b, name="d")
        e = hvd.allreduce(a + 1, hvd.Max, name="e")
        return a, b, c, d, e

    assert calls_of(program, 1.0) == [["a", "c"], ["b", "e"], ["d"]]
    a, b, c, d, e = program(jnp.float32(1))
    assert (a, b, c["x"], c["y"], e) == (n, 2 * n, 3 * n, n, n + 1) and d.tolist() == [5 * n] * n


@ranks(2)
def test_bodies_of_loops_and_branches_in_any_order():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd
    from jax import lax
    from jax_programs import calls_of

    n, r = hvd.size(), hvd.rank()
    four = reversed_on_one_rank(4, lambda x, i: hvd.allreduce(x + i, hvd.Sum, name=f"of.{i}"))
    summed = n * np.arange(4)

    scan = jax.jit(lambda x: lax.scan(lambda c, _: (c + 1, four(c)), x, None, 3)[1])
    assert [sorted(call) for call in calls_of(scan, 0.0)] == [[f"of.{i}" for i in range(4)]]
    np.testing.assert_array_equal(scan(0.0), [summed, summed + n, summed + 2 * n])
    loop = jax.jit(lambda x: lax.while_loop(lambda x: x[3] < 50, lambda x: four(x[0]) + x, x))
    np.testing.assert_array_equal(loop(jnp.zeros(4)), loop(jnp.zeros(4)))
    branch = jax.jit(lambda p, x: lax.cond(p, four, lambda x: jnp.zeros(4), x))
    np.testing.assert_array_equal(branch(True, 0.0), summed)
    grad = jax.jit(jax.grad(lambda x: (four(x) * jnp.arange(4)).sum() * (r + 1)))
    (call,) = calls_of(grad, 0.0)
    assert {f"of.{i}.tangent.backward" for i in range(4)} <= set(call)
    assert grad(0.0) == 6 * n * (n + 1) / 2


@ranks(2)
def test_an_ordered_callback_beside_them_keeps_its_order():
    import jax
    import numpy as np
    import rueda.jax as hvd
    from jax.experimental import io_callback
    from jax_programs import calls_of

    n, r = hvd.size(), hvd.rank()
    seen = []

    def see(x):
        seen.append(float(x))
        return np.float32(x)

    def look(x):
        return io_callback(see, jax.ShapeDtypeStruct((), "float32"), x, ordered=True)

    @jax.jit
    def program(x):
        first = look(x)
        if r == 0:
            a = hvd.allreduce(x + 1, hvd.Sum, name="a")
            b = hvd.allreduce(first + 2, hvd.Sum, name="b")
        else:
            b = hvd.allreduce(first + 2, hvd.Sum, name="b")
            a = hvd.allreduce(x + 1, hvd.Sum, name="a")
        look(a)
        later = look(x + 7)  # after the callback that needs a
        return a, b, hvd.allreduce(later, hvd.Sum, name="c")

    assert [sorted(call) for call in calls_of(program, 0.0)] == [["a", "b"], ["c"]]
    assert [float(each) for each in program(0.0)] == [n, 2 * n, 7 * n]
    jax.effects_barrier()
    assert seen == [0, n, 7]


@ranks(2)
def test_one_member_that_fails_is_the_error_once_all_have_ended():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()

    @jax.jit
    def program(x, y):
        return hvd.allreduce(x, hvd.Sum, name="whole"), hvd.allreduce(y, hvd.Sum, name="unequal")

    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*unequal"):
        jax.block_until_ready(program(jnp.float32(1), jnp.zeros(2 + r)))
    whole, again = program(jnp.float32(1), jnp.ones(2))
    assert whole == n and again.tolist() == [n, n]


@ranks(2)
def test_any_name_comes_through():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    names = ("a b", "line\nline 2 3", "Größe \N{SNOWMAN}", '"\\', "7")
    out = jax.jit(lambda x: [hvd.allreduce(x + i, hvd.Sum, name=name) for i, name in enumerate(names)])(jnp.zeros(2))
    assert [each[0] for each in out] == [hvd.size() * i for i in range(len(names))]
