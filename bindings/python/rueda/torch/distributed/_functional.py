"""Functional collectives that PyTorch's C++ does not forward to a process group written in Python."""

import torch
from torch._C._distributed_c10d import _register_work, _resolve_process_group
from torch.distributed.distributed_c10d import AllgatherOptions

_library = None  # lives as long as the process


def teach_pytorch():
    """Once: `all_gather_into_tensor_out` asks the group's Python method, whatever its backend."""
    global _library
    if _library is not None or not hasattr(
        torch.ops._c10d_functional, "all_gather_into_tensor_out"
    ):
        return
    _library = torch.library.Library("_c10d_functional", "IMPL")
    for device in ("CPU", "CUDA"):
        _library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, device)


def _all_gather_into_tensor_out(input, group_size, group_name, *, out):
    group = group_name
    if isinstance(group, str):
        group = _resolve_process_group(group)
    options = AllgatherOptions()
    work = group._allgather_base(out, input, options)
    _register_work(out, work)
    return out
