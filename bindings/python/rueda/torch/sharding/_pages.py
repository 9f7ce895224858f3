"""Memory that goes back to the system when it is not needed any more; malloc may keep what was freed."""

import ctypes
import mmap

import torch

_LEAST = 1 << 18  # bytes; what is smaller is not worth pages of its own


def flat(count, dtype):
    """Flat memory of ``count`` elements that nobody has written to."""
    nbytes = count * torch.empty(0, dtype=dtype).element_size()
    if nbytes < _LEAST:
        return torch.empty(count, dtype=dtype)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype)


def trim():
    """Gives back what malloc keeps, where it is glibc's."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
