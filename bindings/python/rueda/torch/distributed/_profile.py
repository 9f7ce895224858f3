"""Events for `torch.profiler`: ``rueda:all_reduce`` and so on, named as those of PyTorch's own backends.

The event of an operation has the shapes of what this rank puts in (of a receive: what it takes), and lasts as
long as the call. What goes on after its call has a second event, ``rueda:wait_all_reduce``, while this rank waits.
"""

import torch

from rueda.torch._ranges import around
from rueda.torch._ranges import is_on as is_on

_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "recv from any rank": "recvAnySource",
}


def event(name, tensors=(), prefix=""):
    """``tensors``: those whose shapes it has."""
    return around(f"rueda:{prefix}{_NAMES.get(name, name)}", tensors)


def first_of(keep):
    """The tensor that goes in, of what a call keeps: the tensor, or (source, target)."""
    if isinstance(keep, torch.Tensor):
        return (keep,)
    return tuple(t for t in keep or () if isinstance(t, torch.Tensor))[:1]
