"""Tensors of an elastic state: all ranks get rank 0's, and only what differs travels."""

import ctypes

import torch

from rueda._numpy import np
from rueda.elastic._transfer import share


def share_tensors(tensors, what, copies_of=None):
    """Fills tensors in place with rank 0's; returns `Moved`. Errors as of `share`.

    Parameters
    ----------
    tensors : iterable of (str, torch.Tensor)
        The same names, shapes and dtypes on all ranks. Those of a device, or with gaps, go through packed
        copies in host memory.
    what : str
        What they are, for messages.
    copies_of : callable, optional
        Of a list of tensors gives those of which there is a copy, or None in their place: other ranks may read the copies,
        whose large pages the kernel reads several times as fast as small ones.
    """
    tensors = list(tensors)
    names = [name for name, _ in tensors]
    tensors = [tensor for _, tensor in tensors]
    packed = [tensor.detach().cpu().contiguous() for tensor in tensors]
    offered = [None] * len(packed) if copies_of is None else copies_of(packed)
    offered = [mine if copy is None or not copy.is_contiguous() else copy for mine, copy in zip(packed, offered)]
    moved = share([bytes_of(each) for each in packed], what, names, offered=[bytes_of(each) for each in offered])
    if moved.pieces:
        for tensor, each in zip(tensors, packed):
            if each.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(each)
    return moved


def bytes_of(tensor):
    """Its memory, for as long as it lives."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))
