"""Tensors as memory that the library works on: flat, and of a type that it knows.

Ranks need not agree on shapes, only on numbers of elements, as with Gloo.
"""

import torch

from rueda import _ffi
from rueda._dtypes import check_reduction
from rueda._ordered_groups import NOTHING
from rueda.torch._tensors import _DTYPES

_FLOAT8 = _ffi.FLOAT8_E4M3FN, _ffi.FLOAT8_E5M2


def form(tensor):
    """(type, how many of it one element is) for what only moves; types unknown to the library are bytes."""
    known = _DTYPES.get(tensor.dtype)
    return (known, 1) if known is not None else (_ffi.UINT8, tensor.element_size())


def reduced_dtype(tensor, op, name):
    """The type of what is reduced so, by the library's code; ValueError says what there is."""
    known = _DTYPES.get(tensor.dtype)
    if known is None or known in _FLOAT8:
        listed = ", ".join(str(dtype)[6:] for dtype, code in _DTYPES.items() if code not in _FLOAT8)
        raise ValueError(f"{name}: {tensor.dtype} is not reduced by rueda; it reduces {listed}")
    check_reduction(name, known, op)
    return known


def check(tensor, name):
    """ValueError for what has no memory that the library could work on."""
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{name}: a {tensor.layout} tensor is not supported; pass tensor.to_dense()"
        )
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"{name}: tensors on {tensor.device} are not supported; rueda takes cpu and cuda"
        )


def _is_in_a_row(tensor):
    """Its elements are, as the library takes them."""
    return (
        tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and tensor.layout is torch.strided
    )


def packed(tensor, name):
    """The tensor, or a copy, with its elements in a row."""
    if _is_in_a_row(tensor):
        return tensor
    check(tensor, name)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def room(tensor, name):
    """Where a result for this tensor can be written: the tensor, or memory that is copied from afterwards."""
    if _is_in_a_row(tensor):
        return tensor
    check(tensor, name)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def address(tensor):
    return tensor.data_ptr() or NOTHING


def check_devices(name, first, others):
    """ValueError unless all tensors of a call are on one device."""
    for tensor in others:
        if tensor.device != first.device:
            raise ValueError(
                f"{name}: the tensors of one call must be on one device, not on {first.device} and {tensor.device}"
            )


def joined(tensors):
    """One flat tensor of the elements of all: a view where they lie one behind the other, else a copy."""
    view = adjacent(tensors)
    return _concatenated(tensors) if view is None else view


def adjacent(tensors):
    """A flat view of tensors that lie one behind the other in one memory; None: they do not."""
    first = tensors[0]
    size, expected = first.element_size(), first.data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            return None
        if tensor.data_ptr() != expected and tensor.numel():
            return None
        expected += tensor.numel() * size
    count = sum(tensor.numel() for tensor in tensors)
    base = first.detach()
    if count == 0 or first.numel() == 0:
        return None
    if base.untyped_storage().nbytes() < (base.storage_offset() + count) * size:
        return None  # neighbours by chance, in memories of their own
    return base.as_strided((count,), (1,))


def _concatenated(tensors):
    return torch.cat([t.detach().resolve_conj().resolve_neg().reshape(-1) for t in tensors])


def scattered(flat, tensors):
    """Copies a flat result to where each tensor lies."""
    offset = 0
    for tensor in tensors:
        count = tensor.numel()
        tensor.detach().copy_(flat[offset : offset + count].view(tensor.shape))
        offset += count


def back(result, tensor):
    """What brings a result to its tensor when it is there; None: it lies there."""
    return None if result is tensor else lambda _: copied(result, tensor)


def copied(result, tensor):
    tensor.detach().copy_(result.view(tensor.shape))
