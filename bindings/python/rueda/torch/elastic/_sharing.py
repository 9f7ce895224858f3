"""Tensors of an elastic state: all ranks get rank 0's, and only what differs travels."""

import ctypes

import torch

from rueda._numpy import np
from rueda.elastic._transfer import Early, share


class EarlyDigests:
    """Of tensors that are not written to until they are shared, as far as their versions say: made before all ranks meet.

    They are digests of the copies, where there are some: that takes two thirds of the time, as copies lie in large pages.
    """

    def __init__(self, tensors, copies_of=None):
        self._versions = _versions(tensors)
        fit = all(each.is_cpu and each.layout is torch.strided and each.is_contiguous() for each in tensors)
        self._early = Early(_offered(tensors, copies_of)) if fit and tensors else None

    def of(self, tensors):
        """`Early` of these, or None: there is none of them as they are now."""
        return self._early if _versions(tensors) == self._versions else None


def _offered(tensors, copies_of):
    """Bytes of each tensor, in the memory of its copy if it has one."""
    copies = [None] * len(tensors) if copies_of is None else copies_of(tensors)
    pairs = zip(tensors, copies)
    return [bytes_of(mine if copy is None or not copy.is_contiguous() else copy) for mine, copy in pairs]


def _versions(tensors):
    return [each._version for each in tensors]


def share_tensors(tensors, what, copies_of=None, early=None):
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
    early : EarlyDigests, optional
        Perhaps of these tensors.
    """
    tensors = list(tensors)
    names = [name for name, _ in tensors]
    tensors = [tensor for _, tensor in tensors]
    packed = [tensor.detach().cpu().contiguous() for tensor in tensors]
    early = None if early is None else early.of(tensors)
    moved = share([bytes_of(each) for each in packed], what, names, offered=_offered(packed, copies_of), early=early)
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
