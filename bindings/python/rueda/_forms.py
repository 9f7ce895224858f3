"""What the runtime remembers of an operation that comes again, but is a new one each time."""

import ctypes

from rueda import _ffi
from rueda._requests import SLICE

_lib = _ffi.library
_start_and_wait, _output = _lib.rueda_start_and_wait, _lib.rueda_request_output


class Form:
    """Its rueda_op, filled in but for the memory: for unnamed operations, and for results of unknown size.

    As a persistent `Request` it is taken from a cache by one at a time and put back; but the ranks know
    nothing of it. What it starts are operations like all others, matched by name or by order.
    """

    __slots__ = (
        "_argument",
        "_cache",
        "_context",
        "_data",
        "_data_at",
        "_extents",
        "_key",
        "_pointer",
        "_struct",
    )

    def __init__(self, context, struct, cache, key):
        self._context, self._struct = context, struct
        self._cache, self._key = cache, key
        self._pointer = ctypes.c_void_p()
        self._argument = ctypes.byref(self._pointer)
        self._data, self._extents = ctypes.c_void_p(), (ctypes.c_int64 * _ffi.MAX_NDIM)()
        self._data_at = ctypes.byref(self._data)

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

    def output(self, request):
        """(address, shape) of the result of what ran last, as `Request.output`."""
        ndim = _output(request.pointer, self._data_at, self._extents, _ffi.MAX_NDIM)
        return self._data.value or 0, tuple(self._extents[:ndim])
