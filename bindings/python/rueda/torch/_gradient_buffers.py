"""Gradient buffers: where gradients lie when they are to be reduced in memory that a host's ranks share.

Autograd makes a new tensor for the first gradient after ``zero_grad()`` and hands it over without
a copy, so the gradient is elsewhere after most backward passes. It is then copied to its buffer,
which is cheaper than having autograd add to a buffer that must be cleared first. A gradient that is
in its buffer already (further backward passes, ``zero_grad(set_to_none=False)``) is left alone.

The memory is lent to the gradient: it is used again once no tensor looks at it any more, so a
gradient that the script keeps is never overwritten by a later one.
"""

import sys
import warnings
import weakref

import torch

from rueda._heap import Block
from rueda._memory import memory_view
from rueda.torch._tensors import is_plain
from rueda.torch.memory import over, storage_of


class _Lease:
    """Lives as long as any tensor in the memory."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block):
        self.block = block


class GradientBuffers:
    """What the buffers of one optimizer have in common."""

    def __init__(self):
        self.references = _references()
        self._said_full = False

    def say_full(self, error):
        if not self._said_full:
            warnings.warn(f"gradients_in_arena: some gradients stay outside: {error}")
        self._said_full = True


class GradientBuffer:
    """Of one parameter. Has no memory before the first gradient comes."""

    def __init__(self, buffers):
        self._buffers = buffers
        self._block = None
        self._lease = lambda: None

    def bring(self, p):
        """Puts ``p.grad`` into shared memory where that is possible; else leaves it as it is."""
        grad = p.grad
        if not _can_be_reduced_in_place(grad) or self._has(grad):
            return
        if sys.getrefcount(grad) > self._buffers.references:
            return  # the script looks at this very tensor, say as a part of its own buffer
        if self._block is None or self._lease() is not None or not self._fits(grad):
            try:
                self._block = Block(_nbytes(grad))
            except MemoryError as error:
                self._buffers.say_full(error)
                return
        with torch.no_grad():
            p.grad = self._lend(grad).copy_(grad)

    def _fits(self, grad):
        return self._block.nbytes == _nbytes(grad)

    def _has(self, grad):
        block = self._block
        return block is not None and grad.data_ptr() == block.address and self._fits(grad)

    def _lend(self, like):
        """A tensor in the buffer with the form of ``like``, a contiguous one."""
        lease = _Lease(self._block)
        self._lease = weakref.ref(lease)
        view = memory_view(self._block.address, self._block.nbytes, lease)
        return over(view, like.size(), like.stride(), like.dtype)


def _nbytes(tensor):
    return tensor.numel() * tensor.element_size()


def _can_be_reduced_in_place(grad):
    """Dense, contiguous, alone in its storage, and not part of a graph (``create_graph``)."""
    return (
        is_plain(grad)
        and grad.numel() > 0
        and storage_of(grad).nbytes() == _nbytes(grad)
    )


def _references():
    """References to a gradient that nobody but its parameter and one variable refers to."""
    p = torch.zeros(1, requires_grad=True)
    (p * 2).sum().backward()
    grad = p.grad
    return sys.getrefcount(grad)
