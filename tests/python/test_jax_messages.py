"""send, recv, sendrecv and barrier of rueda.jax: in order inside of programs, also among collectives."""

import pytest
from worlds import ranks

pytest.importorskip("jax")
WORLD = "jax"


@ranks(2, 3)
def test_a_ring_inside_and_outside_of_jit():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax import lax

    n, r = hvd.size(), hvd.rank()
    right, left = (r + 1) % n, (r - 1) % n
    x = {"a": jnp.full((2, 3), float(r)), "b": jnp.int32(r), "c": jnp.full(0, True)}
    for run in (lambda f: f, jax.jit):
        got = run(lambda x: hvd.sendrecv(x, right, left))(x)
        assert got["a"].tolist() == [[left] * 3] * 2 and got["b"] == left and got["c"].shape == (0,)
        like = jax.ShapeDtypeStruct((left,), "complex64")
        got = run(lambda x: hvd.sendrecv(x, right, left, like=like, tag=7))(jnp.full(r, 1j))
        assert got.tolist() == [1j] * left

    def step(carry, _):
        moving, total = carry
        moving = hvd.sendrecv(moving, right, left)
        return (moving, total + moving), hvd.allreduce(moving, hvd.Max)

    (_, total), most = jax.jit(lambda x: lax.scan(step, (x, x * 0), None, n))(jnp.float32(r))
    assert total == n * (n - 1) / 2 and most.tolist() == [n - 1] * n


@ranks(2)
def test_messages_stay_where_they_stand_among_collectives():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from jax_programs import calls_of

    n, r = hvd.size(), hvd.rank()

    @jax.jit
    def program(x):
        before = hvd.allreduce(x, hvd.Sum, name="before")
        for i in range(3):
            if r == 0:
                hvd.send(x + i, 1, tag=i)
                jax.jit(lambda x: hvd.send(x * 10, 1))(x + i)
            else:
                x = hvd.recv(x, 0, tag=i) + jax.jit(lambda x: hvd.recv(x, 0))(x)
        hvd.barrier()
        after = [hvd.allreduce(y, hvd.Sum, name=f"after.{i}") for i, y in enumerate((before, 1.0))]
        return x, before, after

    calls = calls_of(program, 1.0)
    assert calls[0] == ["before"] and calls[-1] == ["after.0", "after.1"] and len(calls) == 2 + 6 + 1
    assert [call[0].rsplit(".", 2)[0] for call in calls[1:-1]] == (
        ["jax.jit_program.send"] * 6 if r == 0 else ["jax.jit_program.recv"] * 6
    ) + ["jax.jit_program.barrier"]
    for size in ((), (4096,)):
        for _ in range(3):
            x, before, after = program(jnp.ones(size))
            assert (before == n).all() and (after[0] == n * n).all() and (after[1] == n).all()
            assert (x == (1 if r == 0 else 33)).all()


@ranks(2)
def test_one_side_only_in_a_branch_and_what_cannot_be():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd
    from expect import raises
    from jax import lax

    r = hvd.rank()

    def told(x):
        if r == 0:
            return lax.cond(x > 0, lambda x: [hvd.send(x, 1), x][1], lambda x: x * 2, x)
        return lax.cond(x > 0, lambda x: hvd.recv(x, 0), lambda x: x * 3, x)

    program = jax.jit(told)
    assert program(jnp.float32(5 + r)) == 5 and program(jnp.float32(-1)) == -2 - r
    other = 1 - r
    for wrong in (lambda: hvd.send(1.0, r), lambda: hvd.recv(jnp.ones(1), 2), lambda: hvd.send(1.0, other, -1)):
        with raises(ValueError, "expected"):
            wrong()
    with raises(NotImplementedError, "no derivatives"):
        jax.grad(lambda x: hvd.sendrecv(x, other, other))(1.0)
    def checkpointed(x):
        hvd.barrier()
        return jnp.sin(x)

    for run in (lambda f: f, jax.jit):
        with raises(NotImplementedError, "barrier cannot be in jax.checkpoint"):
            run(jax.grad(jax.checkpoint(checkpointed)))(1.0)
    with raises(NotImplementedError, "outside of it"):
        jax.vmap(lambda x: hvd.sendrecv(x, other, other))(jnp.ones(2))
    hvd.barrier()
    only = hvd.add_process_set([1])
    if r == 1:
        jax.jit(lambda x: [hvd.barrier(only), x][1])(1.0).block_until_ready()
    hvd.remove_process_set(only)


@ranks(2)
def test_one_that_fails_leaves_the_next_ones_alone():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    other = 1 - hvd.rank()
    x = jnp.ones((500, 500))  # small ones JAX runs at once

    def exchange(rows):
        like = jax.ShapeDtypeStruct((rows,), "float32")
        return jax.jit(lambda x: hvd.sendrecv((x @ x)[0, :2], other, other, like=like))(x)

    failing = exchange(3)
    with pytest.raises(jax.errors.JaxRuntimeError, match="FAILED_PRECONDITION.*sizes or types differ"):
        failing.block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.effects_barrier()  # its token has failed, too
    assert exchange(2).tolist() == [500, 500]
