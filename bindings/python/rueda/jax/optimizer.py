"""Gradients that are the same on all ranks: an optax optimizer, and `value_and_grad`."""

import functools

import jax

from rueda._compression import compressed_group
from rueda._frameworks import replaced
from rueda._numbers import whole_number
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.jax.collectives import allreduce
from rueda.jax.compression import Compression


def _reduce(grads, op, compression, process_set):
    leaves, form = jax.tree.flatten(grads)
    # Those of whole numbers (allow_int) are of a type without values.
    moved = [i for i, each in enumerate(leaves) if getattr(each, "dtype", None) != jax.dtypes.float0]
    sent = [leaves[i] for i in moved]
    reduced = compressed_group(allreduce, compression, sent, op=op, process_set=process_set)
    return jax.tree.unflatten(form, replaced(leaves, moved, reduced))


def _check_op(op):
    """ValueError for a reduction that makes no gradient."""
    if whole_number("op", op) not in (basics.Average, basics.Sum, basics.Adasum):
        raise ValueError(f"op={op!r}: gradients are reduced by Average, Sum or Adasum")


def DistributedOptimizer(
    optax_tx,
    *,
    op=basics.Average,
    compression=Compression.none,
    process_set=global_process_set,
    every_k=1,
):
    """An optax optimizer that reduces gradients over all ranks, as one group, before it uses them.

    Parameters
    ----------
    optax_tx : optax.GradientTransformation
    op : int
        ``Average``, ``Sum`` or ``Adasum``.
    compression : type
        One of `Compression`.
    process_set : ProcessSet
        The ranks that take part.
    every_k : int
        Gradients of so many calls are averaged on this rank first; updates between are zero.

    Returns
    -------
    optax.GradientTransformation
    """
    import optax

    every_k = whole_number("every_k", every_k, 1)
    _check_op(op)
    inner = optax.with_extra_args_support(optax_tx)

    def update(grads, state, params=None, **extra):
        reduced = _reduce(grads, op, compression, process_set)
        return inner.update(reduced, state, params, **extra)

    distributed = optax.GradientTransformationExtraArgs(inner.init, update)
    if every_k == 1:
        return distributed
    return optax.MultiSteps(distributed, every_k).gradient_transformation()


def value_and_grad(
    fun,
    argnums=0,
    has_aux=False,
    *,
    op=basics.Average,
    compression=Compression.none,
    process_set=global_process_set,
    **options,
):
    """`jax.value_and_grad` whose gradients are reduced over all ranks, as one group.

    The value, and what comes with it (``has_aux``), stay this rank's own. ``options`` go to JAX.
    """
    _check_op(op)
    local = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def distributed(*args, **kwargs):
        value, grads = local(*args, **kwargs)
        return value, _reduce(grads, op, compression, process_set)

    return distributed
