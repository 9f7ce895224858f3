"""Horovod's collectives on PyTorch tensors.

The synchronous functions out of place, here, are differentiable; the asynchronous ones and those in
place (with a trailing underscore) come from `rueda.torch._async`. Without a name, the n-th unnamed
operation of a kind meets the n-th of every other rank.

Errors: ValueError when the call is wrong on this rank, HorovodInternalError when ranks disagree or
a rank is lost, `DeadlineExceeded` when a given timeout passes.
"""

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
from rueda.torch.compression import Compression

__all__ = (
    _basics.__all__
    + _async.__all__
    + [
        "HorovodInternalError",
        "allgather",
        "allreduce",
        "alltoall",
        "broadcast",
        "grouped_allgather",
        "grouped_allreduce",
        "grouped_reducescatter",
        "join",
        "reducescatter",
    ]
)

_NONE = Compression.none


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
        One of `Compression`: what the tensor travels as.
    op : int, optional
        Average (default), Sum, Min, Max or Product. Average of integers truncates toward zero.
    prescale_factor, postscale_factor : float
        Multiply the input before, the result after the reduction.
    """
    if average is None and compression is _NONE:
        reduce = AVERAGE if op is None else op
        scales = prescale_factor, postscale_factor
        key = getattr(process_set, "key", None)
        result = run_again(ALLREDUCE, name, tensor, False, reduce, *scales, key)
        if result is not None:
            return result
    op = reduce_op(op, average)
    wire, ctx = compression.compress(tensor)
    output = _autograd.Allreduce.apply(
        name, op, prescale_factor, postscale_factor, process_set, wire
    )
    return compression.decompress(output, ctx)


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
    wires, contexts = _compress_all(compression, tensors)
    outputs = _autograd.GroupedAllreduce.apply(
        name, op, prescale_factor, postscale_factor, process_set, *wires
    )
    return tuple(map(compression.decompress, outputs, contexts))


def allgather(tensor, name=None, process_set=global_process_set):
    """Concatenates the ranks' tensors along dimension 0 in rank order; first extents may differ."""
    return _autograd.Allgather.apply(name, process_set, False, tensor)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """`allgather` of several tensors as one operation; returns a tuple."""
    return _autograd.Allgather.apply(name, process_set, True, *tensors)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Returns on every rank what ``root_rank`` passed in; shapes and dtypes must be equal."""
    key = getattr(process_set, "key", None)
    result = run_again(BROADCAST, name, tensor, False, root_rank, key)
    if result is not None:
        return result
    return _autograd.Broadcast.apply(root_rank, name, process_set, tensor)


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
    output, received = _autograd.Alltoall.apply(splits, name, process_set, tensor)
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
    output = _autograd.Reducescatter.apply(
        name, op, process_set, prescale_factor, postscale_factor, False, wire
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
    outputs = _autograd.Reducescatter.apply(
        name, op, process_set, prescale_factor, postscale_factor, True, *wires
    )
    return tuple(map(compression.decompress, outputs, contexts))


def _compress_all(compression, tensors):
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [wire for wire, _ in pairs], [ctx for _, ctx in pairs]
