"""Collectives on arrays and pytrees, the same inside ``jax.jit`` as outside of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rueda import _array_collectives, _ffi
from rueda._dtypes import CODES, check_reduction
from rueda._frameworks import check_name
from rueda._numbers import whole_number
from rueda._runtime import member_name, runtime
from rueda.common import basics
from rueda.common.process_sets import global_process_set, id_for_operation
from rueda.jax._internals import core, is_run_again, runs_at_once
from rueda.jax._library import jax_errors
from rueda.jax._primitive import Spec, collective


def _spec(kind, process_set, name, **fields):
    place = runtime.require_running()
    set_id = id_for_operation(process_set)
    check_name(name)
    return Spec(
        kind,
        process_set=set_id,
        size=process_set.size(),
        place=process_set.rank(),
        rank=place.rank,
        world=place.size,
        name=name,
        **fields,
    )


def _reduction(op, prescale_factor, postscale_factor):
    op = whole_number("op", op)
    if op not in range(basics.Average, basics.Product + 1):
        raise ValueError(f"op={op!r} is not one of Average, Sum, Adasum, Min, Max, Product")
    return {"op": op, "prescale": float(prescale_factor), "postscale": float(postscale_factor)}


def check_dtype(kind, array):
    """ValueError for what the runtime cannot move."""
    if array.dtype.name not in CODES:
        raise ValueError(f"{kind}: dtype {array.dtype.name} is not supported")


def _check(kind, array, spec):
    """ValueError for what the runtime cannot do with this dtype or shape."""
    check_dtype(kind, array)
    if kind in ("allgather", "alltoall", "reducescatter"):
        if array.ndim == 0:
            raise ValueError(
                f"{kind} of an array without dimensions: it needs a first one; use x[None]"
            )
        if kind == "alltoall" and array.shape[0] % spec.size:
            raise ValueError(
                f"alltoall: {array.shape[0]} rows cannot be divided by {spec.size} ranks"
            )
    if kind in ("allreduce", "reducescatter"):
        check_reduction(kind, CODES[array.dtype.name], spec.op, spec.prescale, spec.postscale)


def _run(kind, tree, spec):
    leaves, form = jax.tree.flatten(tree)
    if not leaves:
        return tree
    leaves = [each if isinstance(each, jax.Array) else jnp.asarray(each) for each in leaves]
    if core.trace_state_clean() and not is_run_again():
        results = _program(kind, spec)(leaves)
    else:
        results = _traced(kind, leaves, spec)
    return jax.tree.unflatten(form, results)


@functools.lru_cache(maxsize=4096)
def _program(kind, spec):
    """One of its own for what is called outside of all others: found by the arrays' types, it is not made and looked at again."""

    def rueda_collective(leaves):  # ranks meet by this name, which is also that of the primitive's programs
        return _traced(kind, leaves, spec)

    return jax.jit(rueda_collective)


def _traced(kind, leaves, spec):
    for each in leaves:
        _check(kind, each, spec)
    return collective(leaves, spec)


def allreduce(
    x,
    op=basics.Average,
    *,
    name=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """The reduction over all ranks; of a pytree as one group.

    Parameters
    ----------
    x : array or pytree of arrays
        Of equal shapes and dtypes on all ranks.
    op : int
        ``Average``, ``Sum``, ``Adasum``, ``Min``, ``Max``, ``Product``. Derivatives are there for the
        first two.
    name : str, optional
        Ranks match operations by it; once per program. Without one the place in the program counts.
    prescale_factor, postscale_factor : float
        Applied before and after the reduction.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    """
    fields = _reduction(op, prescale_factor, postscale_factor)
    return _run("allreduce", x, _spec(_ffi.ALLREDUCE, process_set, name, **fields))


def reducescatter(
    x,
    op=basics.Average,
    *,
    name=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """This rank's rows of the reduction; the first ranks get one more where they cannot be divided.

    Parameters are those of `allreduce`.
    """
    fields = _reduction(op, prescale_factor, postscale_factor)
    if op == basics.Adasum:
        raise ValueError("reducescatter: op=Adasum is not supported")
    return _run("reducescatter", x, _spec(_ffi.REDUCESCATTER, process_set, name, **fields))


def allgather(x, *, name=None, process_set=global_process_set):
    """The rows of all ranks, in rank order.

    First extents may differ between ranks where the call runs at once: outside of ``jit``, loops, branches and ``checkpoint``, in
    `jax.grad` and its kin too. Inside, where shapes are known before anybody runs, they must be equal, which all ranks are told.
    Ranks that have joined (`join`) have no rows.
    """
    spec = _spec(_ffi.ALLGATHER, process_set, name)
    leaves, form = jax.tree.flatten(x)
    if not leaves:
        return x
    if not runs_at_once():  # also of constants: a rank may trace alone
        return _run("allgather", x, spec)
    # What one rank alone cannot send is an error on all: nobody waits for it.
    wrong = None
    try:
        for each in leaves:
            _check("allgather", jnp.asarray(each), spec)
    except ValueError as error:
        wrong = error
    sizes = [-1 if wrong else jnp.shape(each)[0] for each in leaves]
    named = None if name is None else name + ".rows"
    with jax_errors():
        rows = _array_collectives.allgather(np.array([[spec.rank, *sizes]], np.int64), named, process_set)
    if wrong:
        raise wrong
    there, rows = rows[:, 0], rows[:, 1:]
    failed = there[rows[:, 0] < 0]
    if len(failed):
        raise ValueError(f"allgather: rank {failed[0]} has given what cannot be sent; its error says why")
    if len(there) < spec.size:
        if any(isinstance(each, core.Tracer) for each in leaves):
            raise ValueError(
                "allgather: a rank has joined, and derivatives and batches are there among all ranks only: call it outside of them"
            )
        # Of another number of rows than programs know.
        sent = _by_the_host(lambda each, at: _array_collectives.allgather(each, at, process_set), leaves, name)
        return jax.tree.unflatten(form, [jnp.asarray(each) for each in sent])
    if (rows == rows[0]).all():
        return _run("allgather", x, spec)
    # Each pads its rows to the longest, and all cut what came.
    longest = rows.max(axis=0)
    padded = []
    for each, most in zip(leaves, longest):
        each = jnp.asarray(each)
        padded.append(jnp.pad(each, [(0, int(most) - each.shape[0])] + [(0, 0)] * (each.ndim - 1)))
    results = []
    for i, each in enumerate(_run("allgather", padded, spec)):
        most = int(longest[i])
        results.append(
            jnp.concatenate([each[r * most : r * most + n] for r, n in enumerate(rows[:, i])])
        )
    return jax.tree.unflatten(form, results)


def _by_the_host(call, leaves, name):
    """[call(array, name)] of each, by way of the host's memory."""
    names = [None if name is None else member_name(name, i) for i in range(len(leaves))]
    with jax_errors():
        return [call(np.asarray(jnp.asarray(each)), at) for each, at in zip(leaves, names)]


def broadcast(x, root_rank, *, name=None, process_set=global_process_set):
    """What ``root_rank``, a rank of the job, has; all ranks give arrays of the same shapes."""
    root_rank = whole_number("root_rank", root_rank)
    if root_rank not in process_set.ranks:
        raise ValueError(f"broadcast: root_rank {root_rank} is not one of {process_set.ranks}")
    return _run("broadcast", x, _spec(_ffi.BROADCAST, process_set, name, root=root_rank))


def alltoall(x, splits=None, *, name=None, process_set=global_process_set):
    """Sends rows to every rank; returns what comes, in rank order.

    Parameters
    ----------
    x : array or pytree of arrays
    splits : sequence or array of integers, optional
        Rows for each rank; outside of transformations only, where arrays go by way of the host's memory. Without it
        the n-th equal part of the rows goes to the n-th rank.
    name, process_set
        Those of `allreduce`.

    Returns
    -------
    array or pytree of arrays, or with ``splits`` a pair
        What comes, and how many rows came from each rank (int32).
    """
    spec = _spec(_ffi.ALLTOALL, process_set, name)
    if splits is None:
        return _run("alltoall", x, spec)
    leaves, form = jax.tree.flatten(x)
    if not core.trace_state_clean() or any(isinstance(each, core.Tracer) for each in (*leaves, splits)):
        raise ValueError(
            "alltoall: with splits, how many rows come is known only once the ranks have talked, which jit, grad and vmap "
            "cannot wait for: call it outside of them, or fill all parts up to equally many rows and leave splits out"
        )
    if not leaves:
        raise ValueError("alltoall: splits of a pytree without arrays")
    leaves = [jnp.asarray(each) for each in leaves]
    splits = _checked_splits(splits, leaves, spec)
    sent = _by_the_host(lambda each, at: _array_collectives.alltoall(each, splits, at, process_set), leaves, name)
    return jax.tree.unflatten(form, [jnp.asarray(rows) for rows, _ in sent]), jnp.asarray(sent[0][1])


def _checked_splits(splits, leaves, spec):
    """As an array; ValueError before anything is sent, where one of the arrays cannot be."""
    splits = np.asarray(splits)
    if not np.issubdtype(splits.dtype, np.integer) or splits.shape != (spec.size,) or (splits < 0).any():
        raise ValueError(f"alltoall: splits={splits.tolist()!r}: expected a number of rows for each of the {spec.size} ranks")
    for each in leaves:
        check_dtype("alltoall", each)
        rows = each.shape[0] if each.ndim else 0
        if splits.sum() > rows:
            raise ValueError(f"alltoall: splits={splits.tolist()!r} are {splits.sum()} rows, of an array that has {rows}")
    return splits


# Horovod's names: a list, as any pytree, is one group.
grouped_allreduce, grouped_allgather, grouped_reducescatter = allreduce, allgather, reducescatter
