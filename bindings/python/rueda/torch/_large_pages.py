"""Memory of large pages, where the system has them: of small ones, the first use takes longer than a copy into them."""

import contextlib
import mmap

import torch

from rueda.torch._moving import copy

LARGE = 2 << 20
_LEAST = 2 * LARGE  # bytes; what is smaller may have no large page in it


def flat(nbytes):
    """So many bytes that nobody has written to."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def empty_like(tensor):
    """`torch.empty_like`, of such memory if it is large and in host memory."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes < _LEAST or tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return torch.empty_like(tensor)
    form = torch.empty_like(tensor, device="meta")
    return torch.as_strided(flat(nbytes).view(form.dtype), form.shape, form.stride())


def clone(tensor):
    """`torch.clone` into such memory."""
    return copy(empty_like(tensor), tensor)
