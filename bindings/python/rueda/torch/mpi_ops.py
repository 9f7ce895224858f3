"""Horovod's collectives on PyTorch tensors.

The synchronous functions are here; those out of place are differentiable, those in place have a
trailing underscore, and all of them may be called in code under torch.compile (docs/compile.md).
The asynchronous ones come from `rueda.torch._async`. Without a name, the n-th unnamed operation of
a kind meets the n-th of every other rank.

Errors: ValueError when the call is wrong on this rank, HorovodInternalError when ranks disagree or
a rank is lost, `DeadlineExceeded` when a given timeout passes.
"""

from rueda import _collectives
from rueda._collectives import join, reduce_op
from rueda._ffi import ALLREDUCE, AVERAGE, BROADCAST
from rueda.common import basics as _basics
from rueda.common.basics import *  # noqa: F401,F403
from rueda.common.basics import Average
from rueda.common.exceptions import HorovodInternalError
from rueda.common.process_sets import global_process_set
from rueda.torch import _async, _autograd
from rueda.torch._again import run_again
from rueda.torch._async import *  # noqa: F401,F403
from rueda.torch._async import (
    allreduce_async_,
    broadcast_async_,
    grouped_allreduce_async_,
    synchronize,
)
from rueda.torch._compiler import graph, is_compiling
from rueda.torch._compress_reducer import reducer_for_call
from rueda.torch._outside import outside_graphs
from rueda.torch.compression import Compression

__all__ = (
    _basics.__all__
    + _async.__all__
    + [
        "HorovodInternalError",
        "allgather",
        "allreduce",
        "allreduce_",
        "alltoall",
        "barrier",
        "broadcast",
        "broadcast_",
        "grouped_allgather",
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_reducescatter",
        "join",
        "reducescatter",
    ]
)

_NONE = Compression.none


def _differentiable():
    """The forms of this place: operations of the graph being compiled, or autograd functions."""
    return graph if is_compiling() else _autograd


def allreduce(
    tensor,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Reduces a tensor element by element over all ranks; every rank gets the same result.

    Parameters
    ----------
    tensor : torch.Tensor
        Same shape and dtype on every rank. Left as it is.
    average : bool, optional
        Deprecated: True is ``op=Average``, False is ``op=Sum``.
    compression
        One of `Compression`: what the tensor travels as. Those with a memory need a name.
    op : int, optional
        Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates toward
        zero.
    prescale_factor, postscale_factor : float
        Multiply the input before, the result after the reduction.
    """
    if average is None and compression is _NONE and not is_compiling():
        reduce = AVERAGE if op is None else op
        scales = prescale_factor, postscale_factor
        key = getattr(process_set, "key", None)
        result = run_again(ALLREDUCE, name, tensor, False, reduce, *scales, key)
        if result is not None:
            return result
    op = reduce_op(op, average)
    reducer = reducer_for_call(compression)
    if reducer is not None:
        arguments = name, op, prescale_factor, postscale_factor, process_set
        return _autograd.compressed_allreduce(reducer, [tensor], *arguments)[0]
    wire, ctx = compression.compress(tensor)
    output = _differentiable().allreduce(
        wire, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(output, ctx)


def allreduce_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`allreduce` in place; returns the same tensor, which must be contiguous."""
    if is_compiling():
        op = reduce_op(op, average)
        scales = prescale_factor, postscale_factor
        return graph.write_back(tensor, graph.allreduce(tensor, name, op, *scales, process_set))
    if average is None:
        reduce = AVERAGE if op is None else op
        scales = prescale_factor, postscale_factor
        key = getattr(process_set, "key", None)
        if run_again(ALLREDUCE, name, tensor, True, reduce, *scales, key) is not None:
            return tensor
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`allreduce` of several tensors as one operation; returns a tuple."""
    op = reduce_op(op, average)
    reducer = reducer_for_call(compression)
    if reducer is not None:
        arguments = name, op, prescale_factor, postscale_factor, process_set
        return _autograd.compressed_allreduce(reducer, tensors, *arguments)
    wires, contexts = _compress_all(compression, tensors)
    outputs = _differentiable().grouped_allreduce(
        wires, name, op, prescale_factor, postscale_factor, process_set
    )
    return tuple(map(compression.decompress, outputs, contexts))


def grouped_allreduce_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`grouped_allreduce` in place; returns a tuple of the same tensors."""
    if is_compiling():
        tensors, op = tuple(tensors), reduce_op(op, average)
        scales = prescale_factor, postscale_factor
        results = graph.grouped_allreduce(tensors, name, op, *scales, process_set)
        return tuple(map(graph.write_back, tensors, results))
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allgather(tensor, name=None, process_set=global_process_set):
    """Concatenates the ranks' tensors along dimension 0 in rank order; first extents may differ."""
    return _differentiable().allgather(tensor, name, process_set)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """`allgather` of several tensors as one operation; returns a tuple."""
    return _differentiable().grouped_allgather(tensors, name, process_set)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Returns on every rank what ``root_rank`` passed in; shapes and dtypes must be equal."""
    if not is_compiling():
        key = getattr(process_set, "key", None)
        result = run_again(BROADCAST, name, tensor, False, root_rank, key)
        if result is not None:
            return result
    return _differentiable().broadcast(tensor, root_rank, name, process_set)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """`broadcast` in place; returns the same tensor, which must be contiguous."""
    if is_compiling():
        return graph.write_back(tensor, graph.broadcast(tensor, root_rank, name, process_set))
    key = getattr(process_set, "key", None)
    if run_again(BROADCAST, name, tensor, True, root_rank, key) is not None:
        return tensor
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends the first ``splits[0]`` rows to rank 0, the next ``splits[1]`` to rank 1, and so on.

    Parameters
    ----------
    splits : list of int or int32 tensor, optional
        Rows for each rank; the rest of the tensor is not sent. Without, every rank gets an equal
        part.

    Returns
    -------
    The received rows in rank order; with ``splits`` given, also how many came from each rank.
    """
    output, received = _differentiable().alltoall(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Reduces (Average or Sum) over all ranks and returns this rank's rows of the result.

    Rows are cut evenly; the first ``rows % size()`` ranks get one more.
    """
    wire, ctx = compression.compress(tensor)
    output = _differentiable().reducescatter(
        wire, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(output, ctx)


def grouped_reducescatter(
    tensors,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """`reducescatter` of several tensors as one operation; returns a tuple."""
    wires, contexts = _compress_all(compression, tensors)
    outputs = _differentiable().grouped_reducescatter(
        wires, name, op, process_set, prescale_factor, postscale_factor
    )
    return tuple(map(compression.decompress, outputs, contexts))


def barrier(process_set=global_process_set):
    """Returns once every rank has called it."""
    (graph if is_compiling() else _collectives).barrier(process_set)


def _compress_all(compression, tensors):
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [wire for wire, _ in pairs], [ctx for _, ctx in pairs]


if graph is None:
    for _function in (
        allgather,
        allreduce,
        allreduce_,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_reducescatter,
        reducescatter,
    ):
        outside_graphs(_function)
