"""Arrays of JAX, inside of ``jax.jit`` and outside: calls of XLA, with gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rueda.attention._calls import Ended
from rueda.attention._heads_jax import with_local_attention  # noqa: F401
from rueda.attention._layouts import position_ids
from rueda.attention._numpy import graph, is_compiling, name_of  # noqa: F401
from rueda.common.basics import Sum
from rueda.jax import _attention
from rueda.jax.collectives import allgather, allreduce

EQUAL_SHARES = True  # a program's shapes are fixed when it is traced, on which ranks must not wait for each other


def heads_second(array):
    return jnp.swapaxes(array, 1, 2)


def options_of(q, options):
    return options


def attention(plan, q, k, v, threads, save, wait, process_set):
    """(out, lse, call); JAX knows when they are there."""
    return *_attention.attention(plan, threads, save, q, k, v), Ended()


def take(full, layout, axis, process_set):
    return jnp.take(full, position_ids(full.shape[axis], layout, process_set=process_set), axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4, 5))
def _put_together(shard, positions, own, length, axis, process_set):
    gathered = allgather(jnp.moveaxis(shard, axis, 0), process_set=process_set)
    order = np.argsort(np.asarray(positions))
    return jnp.moveaxis(gathered[order], 0, axis)


def _put_forward(shard, *rest):
    return _put_together(shard, *rest), None


def _put_backward(positions, own, length, axis, process_set, _, grad):
    """Each rank's gradient is that of its own copy of the whole; they are added."""
    total = allreduce(grad, op=Sum, process_set=process_set)
    return (jnp.take(total, np.asarray(own), axis),)


_put_together.defvjp(_put_forward, _put_backward)


def put_together(shard, positions, own, length, axis, process_set):
    return _put_together(shard, tuple(positions), tuple(own), length, axis, process_set)


def mix_detached(outs, lses, heads_first=False):
    """Attention over all sets of keys from the results over each; the weights have no gradient."""
    every = jax.lax.stop_gradient(jnp.stack(lses))
    total = jax.nn.logsumexp(every, 0)
    weights = jnp.exp(every - jnp.where(jnp.isinf(total), 0.0, total))[..., None]
    if not heads_first:
        weights = jnp.swapaxes(weights, 2, 3)
    mixed = sum(weight * out for weight, out in zip(weights, outs))
    return mixed.astype(outs[0].dtype), total


def of_sinks(sinks, out, lse):
    """The partial result of scores without a value."""
    return jnp.zeros_like(out), jnp.broadcast_to(jnp.asarray(sinks, lse.dtype)[:, None], lse.shape)


def merge(out, lse, out2, lse2):
    total = jnp.logaddexp(lse, lse2)
    safe = jnp.where(jnp.isinf(total), 0.0, total)
    weights = [jnp.swapaxes(jnp.exp(each - safe), 1, 2)[..., None] for each in (lse, lse2)]
    return (out * weights[0] + out2 * weights[1]).astype(out.dtype), total
