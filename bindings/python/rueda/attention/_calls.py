"""One forward or backward call on memory, whatever the framework."""

import contextlib
import ctypes

from rueda import _ffi
from rueda._requests import Request
from rueda._runtime import runtime

_lib = _ffi.library


class Saved:
    """What a forward keeps for its backward beside the caller's tensors."""

    def __init__(self):
        self.pointer = ctypes.c_void_p()

    def __del__(self, release=_lib.rueda_attention_saved_release):
        if self.pointer:
            release(self.pointer)


class Call:
    """A call under way. Its tensors (``keep``) are held until it has ended and was waited for, also when it is dropped."""

    def __init__(self, pointer, keep):
        self._request = Request(pointer.value)
        self._keep = keep

    def done(self):
        """Whether it has ended."""
        return self._request.test()

    def wait(self, seconds=None):
        """Until it has ended; raises how it failed, or DeadlineExceeded after ``seconds``."""
        self._request.wait(seconds)
        self._keep = None

    def abort(self):
        """Ends it on this rank soon; what it would have written is unspecified."""
        self._request.cancel()

    def __del__(self, hold=runtime.hold):
        # In a forked child nothing is cancelled, and nothing writes to its copy of the tensors.
        if not self._request.test() and self._request.cancel():
            hold((self._request,), self._keep)


class Ended:
    """A call that was under way before."""

    def done(self):
        return True

    def wait(self, seconds=None):
        pass

    def abort(self):
        pass


@contextlib.contextmanager
def told(process_set, refuse):
    """What is wrong with a call's arguments on this rank ends the others' calls too, which would wait for this one. ``refuse``: how
    they hear of it; None: they do not."""
    try:
        yield
    except (TypeError, ValueError):
        if refuse is not None and runtime.is_initialized() and process_set.size() > 1:
            refuse(process_set)
        raise


def refuse(process_set):
    """This rank's call of all attentions' one order: of no heads, which the library refuses and tells the others."""
    spec = _ffi.AttentionDecodeSpec(struct_size=ctypes.sizeof(_ffi.AttentionDecodeSpec))
    pointer, error = ctypes.c_void_p(), _ffi.Error()
    code = _lib.rueda_attention_decode(
        runtime.require_context(), ctypes.byref(spec), process_set.process_set_id, 1, None, None, None, None, None,
        ctypes.byref(pointer), ctypes.byref(error),
    )  # fmt: skip
    if code == _ffi.OK:
        with contextlib.suppress(Exception):  # that it was refused
            Call(pointer, None).wait()


def _context(plan):
    return None if plan.local else runtime.require_context()


def start_forward(plan, threads, q, k, v, out, lse, keep, saves=True):
    """Addresses; returns (Call, Saved). Without ``saves`` nothing is kept for a backward."""
    pointer, saved, error = ctypes.c_void_p(), Saved(), _ffi.Error()
    code = _lib.rueda_attention_forward(
        _context(plan), plan.pointer, plan.process_set_id, threads, q, k, v, out, lse,
        ctypes.byref(saved.pointer) if saves else None, ctypes.byref(pointer), ctypes.byref(error),
    )  # fmt: skip
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return Call(pointer, (plan, keep)), saved


def start_backward(plan, threads, dout, dlse, q, k, v, out, lse, saved, dq, dk, dv, keep):
    pointer, error = ctypes.c_void_p(), _ffi.Error()
    code = _lib.rueda_attention_backward(
        _context(plan), plan.pointer, plan.process_set_id, threads, dout, dlse, q, k, v, out,
        lse, saved.pointer, dq, dk, dv, ctypes.byref(pointer), ctypes.byref(error),
    )  # fmt: skip
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return Call(pointer, (plan, saved, keep))
