"""librueda_xla.so, which XLA calls, and the context that its calls use."""

import ctypes
import functools
import os

import jax

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common import basics

TARGET = "rueda_collective"


def _load():
    path = os.path.join(os.path.dirname(_ffi.library_path()), "librueda_xla.so")
    loaded = _ffi.open_library(path, "librueda_xla")
    _ffi.require_abi(path, loaded.rueda_xla_abi_version())
    loaded.rueda_xla_use.restype = None
    loaded.rueda_xla_use.argtypes = [ctypes.c_void_p]
    return loaded


_library = _load()
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_library.rueda_xla_collective), "cpu")
_used = None  # the Context that XLA's calls use


def attach():
    """XLA's calls use the running context from now on; HorovodInternalError when not initialised."""
    global _used
    context = runtime.require_context()
    if context is not _used:
        _library.rueda_xla_use(context)
        _used = context


def is_any_under_way():
    """Are there operations, of all threads, that XLA waits for?"""
    return _library.rueda_xla_under_way() != 0


def _begin():
    """In a new world. What was traced in another one has its ranks and sizes in it."""
    if _used is not None:
        jax.clear_caches()
    attach()


@functools.wraps(basics.init)
def init(*args, **kwargs):
    basics.init(*args, **kwargs)
    _begin()


runtime.on_new_epoch.append(_begin)
