"""Names that rueda.jax makes: the same on all ranks, and none of them twice in a program."""

import pytest
from worlds import ranks

pytest.importorskip("jax")
WORLD = "jax"


@ranks(2)
def test_names_made_of_a_name_may_be_made_again():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd
    from jax import lax
    from jax_programs import calls_of

    n = hvd.size()

    def f(x):
        return hvd.allreduce(x, hvd.Sum, name="w") ** 3

    def of_grad(x):
        return jax.grad(lambda x: (f(x) * jnp.sin(x)).sum())(x)

    twice = jax.jit(jax.grad(jax.grad(f)))
    names = sum(calls_of(twice, 1.0), [])
    assert len(set(names)) == len(names) > 3
    assert twice(1.0) == 6 * n**3
    jax.jit(jax.grad(lambda x: of_grad(x).sum()))(jnp.ones(3)).block_until_ready()
    jax.jit(jax.hessian(lambda x: f(x).sum()))(jnp.ones(3)).block_until_ready()

    def scanned(x):
        return lax.scan(lambda c, _: (jnp.sin(hvd.allreduce(c, name="in.loop")), None), x, None, 2)[0]

    checkpointed = jax.jit(jax.grad(lambda x: jax.checkpoint(scanned)(jnp.cos(x))))
    names = sum(calls_of(checkpointed, 1.0), [])
    assert len(set(names)) == len(names) >= 2
    np.testing.assert_allclose(checkpointed(1.0), jax.grad(lambda x: jnp.sin(jnp.sin(jnp.cos(x))))(1.0), rtol=1e-6)

    # The condition of a loop in a batch is lowered twice.
    def grow(x):
        return lax.while_loop(lambda x: hvd.allreduce(x, name="limit") < 10, lambda x: x * 2, x)

    grown = jax.jit(jax.vmap(grow))
    assert sorted(sum(calls_of(grown, jnp.ones(2)), [])) == ["limit", "limit.again"]
    assert grown(jnp.array([1.0, 3.0])).tolist() == [16, 12]


@ranks(2)
def test_shapes_that_differ_are_an_error_also_without_a_name():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    rows = 2 + hvd.rank()
    for run in (lambda f: f, jax.jit):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*float32\[2\].*float32\[3\]"):
            jax.block_until_ready(run(lambda x: hvd.allreduce(x))(jnp.zeros(rows)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*output rows.*equally many on all ranks"):
        jax.block_until_ready(jax.jit(lambda x: hvd.allgather(x))(jnp.zeros(rows)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*of 2.*of 3"):
        jax.block_until_ready(jax.jit(lambda x: hvd.allreduce([x] * rows))(jnp.zeros(2)))
    for run in (lambda f: f, jax.jit):
        with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*outside a group.*in group .* of 2"):
            jax.block_until_ready(run(lambda x: hvd.allreduce([x] * (rows - 1), name="list"))(jnp.zeros(2)))


@ranks(2)
def test_programs_for_gpus_call_the_same_operations():
    """Lowered only: no GPU is needed. tests/cuda runs what they call."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from expect import raises
    from jax_programs import calls_in

    def program(x):
        x = hvd.allreduce(x, name="of.gpus")
        hvd.barrier()
        return jax.grad(lambda x: hvd.allgather(x, name="rows").sum())(x)

    traced = jax.jit(program).trace(jnp.ones(3))
    for_gpus = traced.lower(lowering_platforms=("cuda",)).as_text()
    names = sum(calls_in(for_gpus), [])
    assert names == sum(calls_in(traced.lower().as_text()), []) and {"of.gpus", "rows"} < set(names)
    q = jnp.ones((1, 4, 1, 8))
    with raises(NotImplementedError, "arrays on a GPU"):
        jax.jit(hvd.attention.ring_attention).trace(q, q, q).lower(lowering_platforms=("cuda",))


@ranks(2)
def test_tracing_alone_sends_nothing_even_of_constants():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    x = jnp.ones((3, 1))

    def f(scale):
        return hvd.allgather(x) * scale

    if hvd.rank() == 0:
        assert jax.eval_shape(f, 1.0).shape == (6, 1)
    assert jax.jit(f)(2.0)[:, 0].tolist() == [2.0] * 6


@ranks(3)
def test_unnamed_ones_of_a_process_set_are_counted_in_it():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax_programs import calls_of

    r = hvd.rank()
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])]

    def program(x):
        return [hvd.allreduce(x, hvd.Sum, process_set=each) for each in sets if each.included()]

    (names,) = calls_of(jax.jit(program), jnp.float32(1))
    every = hvd.allgather_object(names)
    assert every == [[every[1][0], every[2][0]], every[1], every[2]]
    assert [float(each) for each in jax.jit(program)(jnp.float32(1))] == [2] * (2 if r == 0 else 1)
    for each in sets:
        hvd.remove_process_set(each)


@ranks(2)
def test_what_cannot_be_is_said():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rueda.jax as hvd
    from expect import raises
    from jax import lax

    n, r = hvd.size(), hvd.rank()
    vectors = jnp.ones((3, 4))
    with raises(NotImplementedError, "Adasum", "lax.map"):
        jax.vmap(lambda x: hvd.allreduce(x, hvd.Adasum))(vectors)
    np.testing.assert_array_equal(lax.map(lambda x: hvd.allreduce(x, hvd.Adasum), vectors), vectors)

    # On one rank alone: an error on both, and the job goes on.
    with raises(ValueError, "needs a first one" if r == 0 else "rank 0 has given what cannot be sent"):
        hvd.allgather(jnp.float32(1) if r == 0 else jnp.ones((2,)))
    assert hvd.allgather(jnp.ones((r + 1,))).shape == (n * (n + 1) // 2,)

    def loss(params):
        return (params["w"] * (r + 1)).sum()

    params = {"w": jnp.ones(2), "steps": jnp.int32(3)}
    _, grads = hvd.value_and_grad(loss, allow_int=True)(params)
    assert grads["w"].tolist() == [1.5, 1.5] and grads["steps"].dtype == jax.dtypes.float0
