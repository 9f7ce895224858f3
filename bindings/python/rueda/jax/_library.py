"""librueda_xla.so, which XLA calls, and the context that its calls use."""

import functools

import jax

from rueda._plugins import Plugin
from rueda._runtime import runtime
from rueda.common import basics
from rueda.jax._internals import dispatch

TARGET = "rueda_collective"

_plugin = Plugin("xla")
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_plugin.library.rueda_xla_collective), "cpu")
attach = _plugin.attach


def is_any_under_way():
    """Are there operations, of all threads, that XLA waits for?"""
    return _plugin.library.rueda_xla_under_way() != 0


def _begin():
    """In a new world. What was traced in another one has its ranks and sizes in it."""
    if _plugin.used is not None:
        jax.clear_caches()
        dispatch.runtime_tokens.clear()  # of messages of the other world
    attach()


@functools.wraps(basics.init)
def init(*args, **kwargs):
    basics.init(*args, **kwargs)
    _begin()


runtime.on_new_epoch.append(_begin)
