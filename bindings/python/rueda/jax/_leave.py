"""The end of a process while operations are under way, which JAX would wait for."""

import atexit
import sys
import threading
import time

import jax

from rueda._runtime import runtime
from rueda.jax import _library
from rueda.jax._internals import dispatch

# For threads to come out of JAX with the error of what they waited for.
_SECONDS = 0.5


@atexit.register
def _leave():
    """They end, with errors that nobody wants."""
    others = _others() if _library.is_any_under_way() else {}
    runtime.shutdown()
    try:
        dispatch.runtime_tokens.block_until_ready()
    except jax.errors.JaxRuntimeError:
        dispatch.runtime_tokens.clear()
    # A thread that comes out of JAX once Python has ended aborts the process.
    deadline = time.monotonic() + _SECONDS
    while others and time.monotonic() < deadline:
        time.sleep(0.002)
        now = _others()
        others = {key: place for key, place in others.items() if now.get(key) == place}


def _others():
    """Where in Python the other threads are."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return {key: (id(frame), frame.f_lasti) for key, frame in frames.items()}
