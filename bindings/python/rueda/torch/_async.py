"""The asynchronous collectives on tensors, their handles, and what passes between two ranks.

None of these is differentiable; the synchronous ones out of place (`mpi_ops`) are.
"""

import torch

from rueda import _collectives
from rueda._collectives import reduce_op
from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch._outside import outside_graphs
from rueda.torch._tensors import Tensors

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "poll",
    "recv",
    "recv_async",
    "reducescatter_async",
    "send",
    "send_async",
    "sparse_allreduce_async",
    "synchronize",
]

_all = _collectives.Collectives(Tensors)


def backward_name(name):
    """Of the operation that computes the gradient of one of this name."""
    return None if name is None else f"{name}.backward"


def poll(handle):
    """Whether the operation behind a handle has ended. Never blocks."""
    return runtime.poll(handle)


def synchronize(handle, timeout=None):
    """Waits for an operation; returns its result, or raises how it failed.

    Parameters
    ----------
    handle : int
        From an ``*_async`` function. None is returned for one that has been synchronised before.
    timeout : float, optional
        Seconds after which to raise `DeadlineExceeded`. The operation goes on; synchronise again.
    """
    return runtime.synchronize(handle, timeout)


def allreduce_async(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts an allreduce into a new tensor; returns a handle. Arguments: `allreduce`."""
    return _all.allreduce(
        [tensor],
        False,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
    )


def allreduce_async_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts an allreduce in place; returns a handle. The tensor must be contiguous."""
    return _all.allreduce(
        [tensor],
        True,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
    )


def grouped_allreduce_async(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts a `grouped_allreduce`; returns a handle."""
    return _all.allreduce(
        tensors,
        False,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
    )


def grouped_allreduce_async_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts a `grouped_allreduce_`; returns a handle."""
    return _all.allreduce(
        tensors,
        True,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
    )


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Reduces a sparse COO tensor (Sum or Average) by gathering indices and values.

    Returns a function without arguments that waits and returns the result, not a handle.
    """
    if op not in (basics.Average, basics.Sum):
        raise ValueError("sparse_allreduce_async: op must be Average or Sum")
    # Gathered along dimension 0, so the indices travel as one row per value.
    indices = allgather_async(tensor._indices().t(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)

    def combine(all_indices, all_values):
        if op == basics.Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape)

    def result():
        return combine(synchronize(indices), synchronize(values))

    result.handles, result.combine = [indices, values], combine
    return result


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Starts an `allgather`; returns a handle."""
    return _all.allgather([tensor], name, process_set, False)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Starts a `grouped_allgather`; returns a handle."""
    return _all.allgather(tensors, name, process_set, True)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts a `broadcast` into a new tensor; returns a handle."""
    return _all.broadcast(tensor, False, root_rank, name, process_set)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts a broadcast in place; returns a handle. The tensor must be contiguous."""
    return _all.broadcast(tensor, True, root_rank, name, process_set)


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Starts an `alltoall`; returns a handle whose result is always (output, received_splits)."""
    if splits is not None:
        if not isinstance(splits, torch.Tensor):
            splits = torch.tensor(splits, dtype=torch.int32)
        if splits.dtype != torch.int32 or splits.dim() != 1:
            raise ValueError("alltoall: splits must be a one-dimensional int32 tensor or a list")
        splits = splits.tolist()
    return _all.alltoall(tensor, splits, name, process_set)


def reducescatter_async(
    tensor,
    name=None,
    op=basics.Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Starts a `reducescatter`; returns a handle."""
    return _all.reducescatter(
        [tensor], name, op, prescale_factor, postscale_factor, process_set, False
    )


def grouped_reducescatter_async(
    tensors,
    name=None,
    op=basics.Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Starts a `grouped_reducescatter`; returns a handle."""
    return _all.reducescatter(
        tensors, name, op, prescale_factor, postscale_factor, process_set, True
    )


def send_async(tensor, dst, tag=0):
    """Starts a `send`; returns a handle."""
    return _all.send(tensor, dst, tag)


def send(tensor, dst, tag=0):
    """Sends a tensor to rank ``dst``; matched with `recv` by (ranks, tag) in order."""
    synchronize(send_async(tensor, dst, tag))


def recv_async(tensor, src, tag=0):
    """Starts a `recv`; returns a handle."""
    return _all.recv(tensor, src, tag)


def recv(tensor, src, tag=0):
    """Receives from rank ``src`` into a tensor of the sender's size and dtype; returns it."""
    return synchronize(recv_async(tensor, src, tag))


def handle_average_backwards_compatibility(op, average):
    """The reduction that a pair of ``op`` and deprecated ``average`` arguments means."""
    return reduce_op(op, average)


for _name in __all__:
    outside_graphs(globals()[_name])
