"""What the runtime remembers of an operation that comes again, but is a new one each time."""

import ctypes

from rueda import _ffi
from rueda._requests import SLICE, output_buffers

_lib = _ffi.library
_start_and_wait = _lib.rueda_start_and_wait


class Form:
    """Its rueda_op, filled in but for the memory: for unnamed operations, and for results of unknown size.

    As a persistent `Request` it is taken from a cache by one at a time and put back; but the ranks know
    nothing of it. What it starts are operations like all others, matched by name or by order.
    """

    __slots__ = (
        "_argument",
        "_cache",
        "_context",
        "_key",
        "_pointer",
        "_struct",
        "buffers",
    )

    def __init__(self, context, struct, cache, key):
        self._context, self._struct = context, struct
        self._cache, self._key = cache, key
        self._pointer = ctypes.c_void_p()
        self._argument = ctypes.byref(self._pointer)
        self.buffers = output_buffers()  # for `Request.output` of what has run

    def put_back(self):
        self._cache[self._key] = self

    def run(self, request, source, target):
        """Starts an operation on this memory and waits for `SLICE`; the empty ``request`` then owns it.

        Returns the library's code. ``request`` stays empty if nothing was started.
        """
        struct, context = self._struct, self._context
        struct.input, struct.output, struct.call_site = source, target, context.site()
        code = _start_and_wait(context, struct, SLICE, self._argument, None)
        request.pointer = self._pointer.value
        self._pointer.value = None
        return code

    def own(self, request):
        """For whoever was interrupted in `run` or after it: ``request`` owns what was started."""
        if request.pointer is None:
            request.pointer = self._pointer.value
