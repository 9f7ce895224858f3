"""Python's part of what the launcher shows of a rank that others wait for: all threads' frames.

The library's signal handler writes the native stack; this puts Python's `faulthandler` before it, which
works without the interpreter's lock, so also for a rank that holds it in C or never lets go of it.
"""

import ctypes
import faulthandler

from rueda import _ffi

_shown = None  # the signal that is registered


def show(context):
    """Registers the handler, once per process; does nothing for ranks without a launcher."""
    global _shown
    signal, fd = ctypes.c_int32(), ctypes.c_int32()
    if _shown is not None:
        return
    if _ffi.library.rueda_stack_file(context, ctypes.byref(signal), ctypes.byref(fd)) != _ffi.OK:
        return
    try:
        faulthandler.register(signal.value, file=fd.value, all_threads=True, chain=True)
        _shown = signal.value
    except (AttributeError, ValueError, OSError, RuntimeError):
        pass  # no faulthandler for signals here: the native stack remains
