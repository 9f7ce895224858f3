"""One forward or backward call on memory, whatever the framework."""

import ctypes

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded

_lib = _ffi.library
_LOOK_AROUND = 0.2  # seconds: how soon Ctrl-C is noticed


class Saved:
    """What a forward keeps for its backward beside the caller's tensors."""

    def __init__(self):
        self.pointer = ctypes.c_void_p()

    def __del__(self):
        if _lib is not None and self.pointer:
            _lib.rueda_attention_saved_release(self.pointer)


class Call:
    """A call under way. Keeps its tensors (``keep``) until it has ended."""

    def __init__(self, pointer, keep):
        self._pointer = pointer
        self._keep = keep

    def poll(self):
        """Whether it has ended."""
        return _lib.rueda_attention_poll(self._pointer) != 0

    def wait(self, seconds=None):
        """Until it has ended; raises how it failed, or DeadlineExceeded after ``seconds``."""
        left = seconds
        while True:
            error = _ffi.Error()
            slice_ = _LOOK_AROUND if left is None else min(left, _LOOK_AROUND)
            code = _lib.rueda_attention_wait(self._pointer, slice_, ctypes.byref(error))
            if code == _ffi.OK:
                return
            if code != _ffi.DEADLINE_EXCEEDED:
                raise _ffi.exception(code, error)
            if left is not None:
                left -= slice_
                if left <= 0:
                    raise DeadlineExceeded(error.message.decode("utf-8", "replace"))

    def abort(self):
        """Ends it on this rank soon; what it would have written is unspecified."""
        _lib.rueda_attention_abort(self._pointer)

    def __del__(self):
        if _lib is None or not self._pointer:
            return
        if not self.poll():  # its tensors are in use
            self.abort()
            _lib.rueda_attention_wait(self._pointer, -1.0, None)
        _lib.rueda_attention_call_release(self._pointer)


def _context(plan):
    return None if plan.local else runtime._require_context()


def start_forward(plan, threads, q, k, v, out, lse, keep):
    """Addresses; returns (Call, Saved)."""
    call, saved, error = ctypes.c_void_p(), Saved(), _ffi.Error()
    code = _lib.rueda_attention_forward(
        _context(plan), plan.pointer, plan.process_set_id, threads, q, k, v, out, lse,
        ctypes.byref(saved.pointer), ctypes.byref(call), ctypes.byref(error),
    )  # fmt: skip
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return Call(call, (plan, keep)), saved


def start_backward(plan, threads, dout, dlse, q, k, v, out, lse, saved, dq, dk, dv, keep):
    call, error = ctypes.c_void_p(), _ffi.Error()
    code = _lib.rueda_attention_backward(
        _context(plan), plan.pointer, plan.process_set_id, threads, dout, dlse, q, k, v, out,
        lse, saved.pointer, dq, dk, dv, ctypes.byref(call), ctypes.byref(error),
    )  # fmt: skip
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return Call(call, (plan, saved, keep))
