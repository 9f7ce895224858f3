"""Collectives in JAX's transformations, against one process that plays all ranks; and that programs which come again are planned."""

import numpy as np
import pytest
from worlds import ranks

pytest.importorskip("jax")
WORLD = "jax"
ROWS = 6  # which 2 and 3 ranks can divide


def collectives_of(hvd):
    """{name: (the collective, what it does with the arrays of all ranks at once, what its gradient, Horovod's, is divided by)}"""
    import jax.numpy as jnp

    n = hvd.size()

    def reduced(x, factor):
        return jnp.broadcast_to(x.sum(0) * factor, x.shape)

    def parts(x):
        return x.reshape(n, n, -1, *x.shape[2:])

    return {
        "sum": (lambda x: hvd.allreduce(x, hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), lambda x: reduced(x, 1.5), 1),
        "average": (lambda x: hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.25), lambda x: reduced(x, 0.5 / n), 1),
        "broadcast": (lambda x: hvd.broadcast(x, 1), lambda x: jnp.broadcast_to(x[1], x.shape), n),
        "alltoall": (hvd.alltoall, lambda x: parts(x).swapaxes(0, 1).reshape(x.shape), 1),
        "allgather": (hvd.allgather, lambda x: jnp.broadcast_to(x.reshape(-1, *x.shape[2:]), (n, n * x.shape[1], *x.shape[2:])), n),
        "scattered": (
            lambda x: hvd.reducescatter(x, hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
            lambda x: x.sum(0).reshape(n, -1, *x.shape[2:]),
            1 / n,
        ),
        "averaged": (lambda x: hvd.reducescatter(x, postscale_factor=3.0), lambda x: x.sum(0).reshape(n, -1, *x.shape[2:]) * 3 / n, 1 / n),
    }  # fmt: skip


def programs():
    """{name: program of a collective, an array and a condition}; the last two keep shapes."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    return {
        "branch": lambda c, x, yes: lax.cond(yes, lambda x: jnp.sin(c(x)), lambda x: c(2 * x), x),
        "checkpoint": lambda c, x, yes: jax.checkpoint(lambda x: jnp.sin(c(jnp.sin(x))))(x),
        "call": lambda c, x, yes: jax.jit(lambda x: c(x * x))(x),
        "scan": lambda c, x, yes: lax.scan(lambda x, _: (jnp.sin(c(x)), None), x, None, 2)[0],
        "while": lambda c, x, yes: lax.while_loop(lambda at: at[0] < 2, lambda at: (at[0] + 1, jnp.sin(c(at[1]))), (0, x))[1],
    }


def with_gradient_over(call, count):
    """The function, whose gradient is divided by so many."""
    import jax

    @jax.custom_vjp
    def made(x):
        return call(x)

    made.defvjp(lambda x: jax.vjp(call, x), lambda back, grad: (back(grad)[0] / count,))
    return made


@ranks(3)
def test_every_collective_in_every_transformation_is_that_of_one_process():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()
    every, direction = np.random.default_rng(5).normal(size=(2, n, ROWS, 2)).astype(np.float32)
    batch = np.random.default_rng(6).normal(size=(n, ROWS, 3, 2)).astype(np.float32)
    pairs = [(name, kind) for name in collectives_of(hvd) for kind in programs()]
    pairs = [(name, kind) for name, kind in pairs if kind not in ("scan", "while") or name in ("sum", "average", "broadcast", "alltoall")]

    def results(of_all, x, moved, rows, yes):
        """Of one rank, or of one process that plays all."""
        found = {}
        for name, kind in pairs:
            mine, played, count = collectives_of(hvd)[name]
            call, of_gradients = (played, with_gradient_over(played, count)) if of_all else (mine, mine)
            program = programs()[kind]
            forward = lambda x, call=call, program=program: program(call, x, yes)  # noqa: E731
            found[name, kind, "jvp"] = jax.jvp(forward, (x,), (moved,))
            found[name, kind, "vmap"] = jax.vmap(forward, 1 + of_all, 1 + of_all)(rows)
            if kind != "while":
                loss = lambda x, call=of_gradients, program=program: (program(call, x, yes) ** 2).sum()  # noqa: E731
                found[name, kind, "grad"] = jax.grad(loss)(x)
        return found

    program, player = jax.jit(lambda *given: results(False, *given)), jax.jit(lambda *given: results(True, *given))
    for yes in (True, False):
        mine = program(every[r], direction[r], batch[r], yes)
        played = jax.device_get(player(every, direction, batch, yes)) if r == 0 else None
        played = hvd.broadcast_object(played, 0)
        for key, found in mine.items():
            for ours, other in zip(jax.tree.leaves(found), jax.tree.leaves(played[key])):
                np.testing.assert_allclose(ours, other[r], rtol=2e-5, atol=2e-5, err_msg=str((key, yes)))
    assert len(mine) == 3 * len(pairs) - 4 and jnp.abs(mine["averaged", "call", "grad"]).min() > 0


@ranks(2)
def test_a_backward_of_ones_own_may_reduce():
    """The way of data-parallel layers: nothing in forward, a sum in backward; in jit, loops and checkpoints."""
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    n, r = hvd.size(), hvd.rank()

    @jax.custom_vjp
    def shared(w):
        return w

    shared.defvjp(lambda w: (w, None), lambda _, grad: (hvd.allreduce(grad, hvd.Sum, name="of.backward"),))

    def layer(x, w):
        return x * shared(w), None

    def plain(w, x):
        return jax.lax.scan(layer, x, w)[0].sum()

    w, x = jnp.asarray([2.0, 3.0]), jnp.full(4, r + 1.0)
    whole = 4 * n * (n + 1) / 2
    for loss in (plain, jax.checkpoint(plain), lambda w, x: jax.lax.scan(jax.checkpoint(layer), x, w)[0].sum()):
        for run in (lambda f: f, jax.jit):
            assert run(jax.grad(loss))(w, x).tolist() == [3 * whole, 2 * whole]


@ranks(2)
def test_a_program_that_comes_again_runs_from_a_step_plan():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvd

    @jax.jit
    def step(grads, x):
        return hvd.allreduce(grads), hvd.allgather(x), hvd.reducescatter(x, hvd.Sum)

    given = [jnp.ones(3), jnp.ones((2, 2)), jnp.ones(5)], jnp.ones(4)
    before = hvd.counter("plans")
    for _ in range(200):
        jax.block_until_ready(step(*given))
    assert hvd.counter("plans") > before
    hvd.barrier()  # which is another step
    seen = []
    for _ in range(10):
        for _ in range(20):
            jax.block_until_ready(step(*given))
        seen.append([hvd.counter(name) for name in ("control_messages", "planned_batches", "batches")])
    steps = np.diff(seen, axis=0)  # a busy machine may have made a rank late, which ends a plan
    assert any(messages == 0 and planned == batches > 0 for messages, planned, batches in steps), steps
