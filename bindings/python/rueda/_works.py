"""What the library hands out for operations: a `Work` for one, a `Prepared` for one that recurs.

Both are polled and waited for in the same way.
"""

import ctypes
import os
import time

from rueda import _ffi
from rueda.common.exceptions import HorovodInternalError

_lib = _ffi.library


def _wait(function, pointer, seconds):
    """Waits until it has ended; raises how it failed, or DeadlineExceeded. None: for ever.

    A signal ends the library's wait, Python runs its handlers, and the wait goes on: so Ctrl-C
    raises KeyboardInterrupt here.
    """
    end = None if seconds is None else time.monotonic() + seconds
    error = None if seconds is None else _ffi.Error()  # big, so made only when it may be needed
    while True:
        left = -1.0 if end is None else max(0.0, end - time.monotonic())
        code = function(pointer, left, error and ctypes.byref(error))
        if code == _ffi.OK:
            return
        if code != _ffi.ABORTED:
            if error is not None:
                raise _ffi.exception(code, error)
            error = _ffi.Error()  # and asks again


class Work:
    """Owns one rueda_work. Its output memory lives exactly as long as this object."""

    __slots__ = ("__weakref__", "_pointer", "_process")

    def __init__(self, pointer):
        self._pointer = pointer
        self._process = os.getpid()

    def poll(self):
        return _lib.rueda_work_poll(self._pointer) != 0

    def released(self):
        """Whether its memory is used no more, on a GPU either."""
        return _lib.rueda_work_released(self._pointer) != 0

    def wait(self, seconds):
        """Until it has ended; raises how it failed, or DeadlineExceeded. None: for ever."""
        _wait(_lib.rueda_work_wait, self._pointer, seconds)

    def make_wait(self, stream):
        """What ``stream`` is given from here on comes behind the end of a GPU's work."""
        error = _ffi.Error()
        code = _lib.rueda_work_stream_wait(self._pointer, stream, ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)

    def output(self):
        """(address, shape) of the result that the work owns."""
        data = ctypes.c_void_p()
        shape = (ctypes.c_int64 * _ffi.MAX_NDIM)()
        ndim = _lib.rueda_work_output(self._pointer, ctypes.byref(data), shape, _ffi.MAX_NDIM)
        if ndim < 0:
            raise HorovodInternalError("the operation has no output")
        return data.value or 0, tuple(shape[:ndim])

    def result(self):
        """The number that the operation gives; -1 if it gives none."""
        return _lib.rueda_work_result(self._pointer)

    def received_splits(self, size):
        splits = (ctypes.c_int64 * size)()
        count = _lib.rueda_work_received_splits(self._pointer, splits, size)
        return list(splits[:count])

    def __del__(self):
        # A forked child has a copy of the pointer but must not enter the parent's library state.
        if _lib is not None and self._pointer and self._process == os.getpid():
            _lib.rueda_work_release(self._pointer)
            self._pointer = None


class Prepared:
    """Owns one rueda_prepared. Whoever took it from its cache has it alone until it is put back."""

    __slots__ = ("__weakref__", "_cache", "_key", "_process", "pointer")

    def __init__(self, pointer, cache, key):
        self.pointer = pointer
        self._process = os.getpid()
        self._cache = cache
        self._key = key

    def put_back(self):
        """For the next time. Its last start has ended, and nobody waits for it."""
        self._cache[self._key] = self

    def poll(self):
        return _lib.rueda_prepared_poll(self.pointer) != 0

    def released(self):
        """As `Work.released`, of its last start."""
        return _lib.rueda_prepared_released(self.pointer) != 0

    def make_wait(self, stream):
        """As `Work.make_wait`, of its last start."""
        error = _ffi.Error()
        code = _lib.rueda_prepared_stream_wait(self.pointer, stream, ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)

    def wait(self, seconds):
        """Until its last start has ended; as `Work.wait`."""
        _wait(_lib.rueda_prepared_wait, self.pointer, seconds)

    def __del__(self):
        if _lib is not None and self.pointer and self._process == os.getpid():
            _lib.rueda_prepared_release(self.pointer)
            self.pointer = None
