"""``TORCH_DISTRIBUTED_DEBUG=DETAIL``: before each collective the ranks compare where it is called from.

Two calls that look alike but come in another order give wrong numbers silently; with this they are an error
on all ranks, and nothing has been touched. Costs a small gather for each call.
"""

import ctypes
import sys

import torch
from torch.distributed import DebugLevel, get_debug_level

from rueda import _ffi
from rueda._ordered_groups import Description
from rueda._sites import _is_passed_through, _short
from rueda.torch.distributed._errors import CollectiveError

_BYTES = 256


def checks_sites():
    return get_debug_level() == DebugLevel.DETAIL


def check(group, name):
    """CollectiveError, on all ranks: they are at different places of the program."""
    mine = f"{name} at {_place()}".encode()[:_BYTES]
    own = torch.zeros(_BYTES, dtype=torch.uint8)
    ctypes.memmove(own.data_ptr(), mine, len(mine))
    everybody = torch.empty(group._size * _BYTES, dtype=torch.uint8)
    description = Description(
        _ffi.ALLGATHER,
        _ffi.UINT8,
        _BYTES,
        output_splits=(_BYTES,) * group._size,
        rows=group._size * _BYTES,
    )
    group._group.run(
        description, own.data_ptr(), everybody.data_ptr(), (own, everybody), group._seconds
    )
    texts = [
        bytes(row.tolist()).rstrip(b"\0").decode("utf-8", "replace")
        for row in everybody.view(-1, _BYTES)
    ]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise CollectiveError(
                f"call {group._sequence} of group {group._name!r}: rank 0 is in {texts[0]}, rank {rank} in {text}"
            )


def _place():
    frame = sys._getframe(3)
    while frame is not None and _is_passed_through(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "a place in PyTorch"
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
