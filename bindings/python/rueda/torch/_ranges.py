"""Ranges that PyTorch's profilers show (`torch.profiler`, `torch.autograd.profiler`, also as NVTX's)."""

import contextlib

import torch

from rueda import _ranges

is_on = torch.autograd._profiler_enabled


def enter(title, tensors=()):
    """Begins a range, with the shapes of these; returns what `leave` ends. None while nobody listens."""
    if not is_on():
        return None
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    return torch.autograd._record_function_with_args_enter(title, *tensors)


def leave(handle):
    if handle is not None:
        torch.autograd._record_function_with_args_exit(handle)


@contextlib.contextmanager
def around(title, tensors=()):
    handle = enter(title, tensors)
    try:
        yield
    finally:
        leave(handle)


_ranges.follow(is_on, around)
