"""Tensors of an elastic state: all ranks get rank 0's, and only what differs travels."""

import ctypes

import torch

from rueda._numpy import np
from rueda.elastic._transfer import share


def share_tensors(tensors, what):
    """Fills tensors in place with rank 0's; returns `Moved`. Errors as of `share`.

    Parameters
    ----------
    tensors : iterable of (str, torch.Tensor)
        The same names, shapes and dtypes on all ranks. Those of a device, or with gaps, go through packed
        copies in host memory.
    what : str
        What they are, for messages.
    """
    tensors = list(tensors)
    names = [name for name, _ in tensors]
    tensors = [tensor for _, tensor in tensors]
    packed = [tensor.detach().cpu().contiguous() for tensor in tensors]
    moved = share([bytes_of(each) for each in packed], what, names)
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
