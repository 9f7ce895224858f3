"""What the runtime remembers of an operation that comes again, but is a new one each time."""

import ctypes

from rueda import _ffi

_start, _OK = _ffi.library.rueda_start, _ffi.OK


class Form:
    """Its rueda_op, filled in but for the memory: for unnamed operations, and for results of unknown size.

    As a persistent `Request` it is taken from a cache by one at a time and put back; but the ranks know
    nothing of it. What it starts are operations like all others, matched by name or by order.
    """

    __slots__ = ("_argument", "_cache", "_context", "_key", "_pointer", "_struct")

    def __init__(self, context, struct, cache, key):
        self._context, self._struct = context, struct
        self._cache, self._key = cache, key
        self._pointer = ctypes.c_void_p()
        self._argument = ctypes.byref(self._pointer)

    def put_back(self):
        self._cache[self._key] = self

    def start(self, request, source, target):
        """Whether an operation on this memory was started, which the empty ``request`` then owns."""
        struct, context = self._struct, self._context
        struct.input, struct.output, struct.call_site = source, target, context.site()
        if _start(context, struct, 1, 0, self._argument, None) != _OK:
            return False
        self.own(request)
        return True

    def own(self, request):
        """``request`` owns what was started. It may be called again, by whoever was interrupted here."""
        if request.pointer is None:
            request.pointer = self._pointer.value
        self._pointer.value = None
