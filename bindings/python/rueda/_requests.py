"""What the library hands out for whatever takes time: a `Request`, started once or again and again.

A wait in the library lasts `SLICE` at most and is then gone on with: while a large collective runs, the
waiting thread may be the one that runs it, and between two waits Python sees signals and deadlines.
"""

import ctypes
import time

from rueda import _ffi
from rueda.common.exceptions import HorovodInternalError

SLICE = 0.05  # seconds

_lib = _ffi.library
_test, _wait, _output = _lib.rueda_request_test, _lib.rueda_request_wait, _lib.rueda_request_output
_wait_any = _lib.rueda_request_wait_any
_Extents = ctypes.c_int64 * _ffi.MAX_NDIM
_OK = _ffi.OK
GO_ON = _ffi.DEADLINE_EXCEEDED, _ffi.ABORTED  # codes of a wait that is to be gone on with


def output_buffers():
    """What `Request.output` is written to."""
    data = ctypes.c_void_p()
    return data, ctypes.byref(data), _Extents()


class Request:
    """Owns one rueda_request. Results that are its own live exactly as long as this object.

    A persistent one can be taken from a cache; whoever has taken it has it alone until it is put back.
    """

    __slots__ = ("__weakref__", "_cache", "_key", "pointer")

    def __init__(self, pointer, cache=None, key=None):
        self.pointer = pointer
        self._cache = cache
        self._key = key

    def put_back(self):
        """For the next time. Its last start has ended well, and nobody waits for it."""
        self._cache[self._key] = self

    def test(self):
        """Whether what was started last has ended."""
        return _test(self.pointer) != 0

    def event_fd(self):
        """A descriptor that polls as readable whenever `test` is True. The request's own."""
        fd, error = ctypes.c_int32(), _ffi.Error()
        code = _lib.rueda_request_event_fd(self.pointer, ctypes.byref(fd), ctypes.byref(error))
        if code != _OK:
            raise _ffi.exception(code, error)
        return fd.value

    def memory_released(self):
        """Whether its memory is used no more, on a GPU either."""
        return _lib.rueda_request_memory_released(self.pointer) != 0

    def wait(self, seconds=None, end=None):
        """Until what was started last has ended; raises how it failed, or DeadlineExceeded. None: for ever.

        ``end``: when the seconds have passed, in `time.monotonic`'s, if some have already. Ctrl-C raises
        KeyboardInterrupt here, and what was started goes on.
        """
        pointer, code = self.pointer, None
        if seconds is None:
            while code != _OK:
                code = _wait(pointer, SLICE, None)
                if code != _OK and (code not in GO_ON or _test(pointer)):
                    self.check()
            return
        if end is None:
            end = time.monotonic() + seconds
        while code != _OK:
            left = end - time.monotonic()
            if left <= 0:
                return self.check(seconds)
            code = _wait(pointer, min(left, SLICE), None)
            if code != _OK and (code not in GO_ON or _test(pointer)):
                self.check()

    def check(self, waited=0.0):
        """Raises how it failed; if it has not ended, DeadlineExceeded after ``waited`` seconds."""
        error = _ffi.Error()  # big, so made only here
        code = _ffi.ABORTED
        while code == _ffi.ABORTED:
            code = _wait(self.pointer, 0.0, ctypes.byref(error))
        if code == _OK:
            return
        raised = _ffi.exception(code, error)
        if code == _ffi.DEADLINE_EXCEEDED:  # the library knows of the last look only
            raised.args = (str(raised).replace("after 0.000000 s", f"after {waited:g} s"),)
        raise raised

    def make_wait(self, stream):
        """What ``stream`` is given from here on comes behind the end of a GPU's work."""
        error = _ffi.Error()
        code = _lib.rueda_request_stream_wait(self.pointer, stream, ctypes.byref(error))
        if code != _OK:
            raise _ffi.exception(code, error)

    def cancel(self):
        """Ends an attention call on this rank soon. False: it cannot be ended from here."""
        return _lib.rueda_request_cancel(self.pointer, None) == _OK

    def output(self, buffers=None):
        """(address, shape) of the result. ``buffers``: kept `output_buffers`, of one caller at a time."""
        data, data_at, extents = buffers or output_buffers()
        ndim = _output(self.pointer, data_at, extents, _ffi.MAX_NDIM)
        if ndim < 0:
            raise HorovodInternalError("the operation has no output")
        return data.value or 0, tuple(extents[:ndim])

    def rows(self, size):
        """Rows that came from each of ``size`` ranks."""
        rows = (ctypes.c_int64 * size)()
        count = _lib.rueda_request_rows(self.pointer, rows, size)
        return list(rows[:count])

    def result(self):
        """The number that the operation gives; -1 if it gives none."""
        return _lib.rueda_request_result(self.pointer)

    def __del__(self, release=_lib.rueda_request_release):
        # A forked child has a copy of its parent's, which the library leaves alone there. None: it was
        # interrupted before it had one.
        pointer = getattr(self, "pointer", None)
        if pointer:
            release(pointer)
            self.pointer = None


def wait_any(requests, end=None):
    """Waits until one of these `Request`s has ended whose end nobody has been told, or a slice has passed.

    So whoever waits looks at all of them again, and at what others have done with them meanwhile. None
    among them is passed over. ``end``: until when, in `time.monotonic`'s; DeadlineExceeded when that has
    passed.
    """
    array = (ctypes.c_void_p * len(requests))(*(None if r is None else r.pointer for r in requests))
    place, error = ctypes.c_int64(), _ffi.Error()
    left = SLICE if end is None else min(max(end - time.monotonic(), 0.0), SLICE)
    code = _wait_any(array, len(requests), left, ctypes.byref(place), ctypes.byref(error))
    if place.value >= 0 or code == _OK:
        return
    passed = code == _ffi.DEADLINE_EXCEEDED and end is not None and time.monotonic() >= end
    if code not in GO_ON or passed:
        raise _ffi.exception(code, error)
