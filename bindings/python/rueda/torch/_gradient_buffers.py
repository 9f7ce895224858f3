"""Homes: where gradients lie when they are to be reduced in the memory that a host's ranks share.

Autograd makes a new tensor for the first gradient after ``zero_grad()`` and hands it over without
a copy, so the gradient is elsewhere after most backward passes. It is then copied to its home,
which is cheaper than having autograd add to a home that must be cleared first. A gradient that is
at home already (further backward passes, ``zero_grad(set_to_none=False)``) is left alone.

A home is lent to the gradient: it is used again once no tensor looks at it any more, so a
gradient that the script keeps is never overwritten by a later one.
"""

import sys
import warnings
import weakref

import torch

from rueda._heap import Block
from rueda._memory import bytes_view
from rueda.torch._tensors import is_plain
from rueda.torch.memory import over


class _Lease:
    """Lives as long as any tensor in the home."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block):
        self.block = block


class _Home:
    def __init__(self, nbytes):
        self._block = Block(nbytes)
        self._lease = lambda: None

    def is_lent(self):
        return self._lease() is not None

    def fits(self, grad):
        return self._block.nbytes == _nbytes(grad)

    def has(self, grad):
        return grad.data_ptr() == self._block.address and self.fits(grad)

    def lend(self, like):
        """A tensor in the home with the form of ``like``, a contiguous one."""
        lease = _Lease(self._block)
        self._lease = weakref.ref(lease)
        view = bytes_view(self._block.address, self._block.nbytes, lease)
        return over(view, like.size(), like.stride(), like.dtype)


class GradientBuffers:
    """The homes of all parameters of one optimizer."""

    def __init__(self):
        self._homes = {}  # parameter: home
        self._references = _references()
        self._full = False

    def bring(self, p):
        """Puts ``p.grad`` into shared memory where that is possible; else leaves it as it is."""
        grad = p.grad
        home = self._homes.get(p)
        if home is not None and home.has(grad) and _can_be_reduced_in_place(grad):
            return
        if not _can_be_reduced_in_place(grad) or sys.getrefcount(grad) > self._references:
            return  # the script looks at this very tensor, say as a part of its own buffer
        if home is None or home.is_lent() or not home.fits(grad):
            try:
                home = self._homes[p] = _Home(_nbytes(grad))
            except MemoryError as error:
                self._say_full(error)
                return
        with torch.no_grad():
            p.grad = home.lend(grad).copy_(grad)

    def _say_full(self, error):
        if not self._full:
            warnings.warn(f"gradients_in_arena: some gradients stay outside: {error}")
        self._full = True


def _nbytes(tensor):
    return tensor.numel() * tensor.element_size()


def _can_be_reduced_in_place(grad):
    """Dense, contiguous, alone in its storage, and not part of a graph (``create_graph``)."""
    return (
        is_plain(grad)
        and grad.numel() > 0
        and grad.untyped_storage().nbytes() == _nbytes(grad)
    )


def _references():
    """References to a gradient that nobody but its parameter and one variable refers to."""
    p = torch.zeros(1, requires_grad=True)
    (p * 2).sum().backward()
    grad = p.grad
    return sys.getrefcount(grad)
