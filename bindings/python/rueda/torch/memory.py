"""Tensors in memory that the ranks of a host share: collectives work on them without a copy.

They behave like any CPU tensor. Each has a storage of its own, so that ``torch.save`` writes its
bytes and no others; the memory is given back with the last tensor that looks at it, also after
``shutdown``. A storage cannot grow (``resize_`` beyond its size fails).

Errors: HorovodInternalError before ``init``; MemoryError when the shared memory is used up, which
says how much is in use (``RUEDA_HEAP_BYTES``).
"""

import torch

from rueda._heap import shared_bytes
from rueda._runtime import runtime


def storage_of(tensor):
    """The memory of a tensor, whatever else looks at it."""
    if hasattr(tensor, "untyped_storage"):  # PyTorch 2.0
        return tensor.untyped_storage()
    return tensor.storage().untyped()


def over(view, size, stride, dtype):
    """A tensor, not a view of another, over all bytes of a uint8 array."""
    storage = storage_of(torch.frombuffer(view, dtype=torch.uint8))
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def flat(count, dtype, zeroed=True):
    """``count`` elements of shared memory; not zeroed they may hold what was freed."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    nbytes = count * torch.empty(0, dtype=dtype).element_size()  # dtype.itemsize is newer
    return over(shared_bytes(nbytes, zeroed), (count,), (1,), dtype)


def _make(wanted, requires_grad):
    """``wanted``: a tensor without memory that has the form."""
    runtime.require_running()
    nbytes = wanted.numel() * wanted.element_size()
    if nbytes == 0:
        made = torch.empty_strided(wanted.size(), wanted.stride(), dtype=wanted.dtype, device="cpu")
    else:
        made = over(shared_bytes(nbytes), wanted.size(), wanted.stride(), wanted.dtype)
    return made.requires_grad_(requires_grad)


def empty(*size, dtype=None, requires_grad=False):
    """``torch.empty`` in shared memory. (The elements are zero.)"""
    return _make(torch.empty(*size, dtype=dtype, device="meta"), requires_grad)


def zeros(*size, dtype=None, requires_grad=False):
    """``torch.zeros`` in shared memory."""
    return empty(*size, dtype=dtype, requires_grad=requires_grad)


def empty_like(input, *, dtype=None, requires_grad=False, memory_format=torch.preserve_format):
    """``torch.empty_like`` in shared memory. (The elements are zero.)"""
    form = torch.empty_like(input, dtype=dtype, device="meta", memory_format=memory_format)
    return _make(form, requires_grad)
