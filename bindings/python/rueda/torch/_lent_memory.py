"""Gradients that lie in memory that the ranks of a host share from the beginning, without a copy.

PyTorch's allocator asks the C library for memory, and the runtime answers such calls while a backward pass runs on
this thread, if they ask for as much as a watched parameter has (`rueda_lend_memory`). The pass is noticed by its first
hook, so what it allocates before that is private, as everything is where this cannot be had.
"""

import torch

from rueda import _ffi

_LIBRARY = b"libc10.so"  # where PyTorch's allocator is
_lend, _blocks = _ffi.library.rueda_lend_memory, _ffi.library.rueda_lend_blocks
_begin, _end = _ffi.library.rueda_lend_begin, _ffi.library.rueda_lend_end
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class Window:
    """From the first hook of a backward pass to its end."""

    __slots__ = ("is_open",)

    def __init__(self):
        self.is_open = False

    def open(self):
        try:
            _queue_callback(self.close)
        except RuntimeError:
            return  # a hook that was called outside of any pass
        self.is_open = True
        _begin()

    def close(self):
        if self.is_open:
            self.is_open = False
            _end()


window = Window()  # of whatever thread runs a pass; of several at once one has it


def is_possible():
    """Whether PyTorch's allocations can be answered; costs a look at its library's imports once."""
    return _lend(_LIBRARY, None) == _ffi.OK


def watched(p, remove, count):
    """Room for ``count`` gradients of ``p``, until the returned function is called, which calls ``remove`` too."""
    nbytes = p.numel() * p.element_size()
    _blocks(nbytes, count)

    def end():
        remove()
        _blocks(nbytes, -count)

    return end
