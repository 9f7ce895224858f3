"""librueda_xla.so, which XLA calls, and the context that its calls use."""

import contextlib
import ctypes
import functools

import jax

from rueda import _abi
from rueda._plugins import Plugin
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError, RankLostError
from rueda.jax._internals import dispatch, mlir, raise_later

COLLECTIVE, ATTENTION = "rueda_collective", "rueda_attention"  # custom calls

_plugin = Plugin("xla")
for _target, _function, _platform in (
    (COLLECTIVE, _plugin.library.rueda_xla_collective, "cpu"),
    (COLLECTIVE, _plugin.library.rueda_xla_collective_cuda, "CUDA"),  # kept until a CUDA plugin of JAX's is there
    (ATTENTION, _plugin.library.rueda_xla_attention, "cpu"),
):
    jax.ffi.register_ffi_target(_target, jax.ffi.pycapsule(_function), _platform)
attach = _plugin.attach

_CODES = {  # as XLA writes them
    getattr(_abi, name): name
    for name in (
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "ALREADY_EXISTS",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
    )
}


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p)
def _raise(code, message):
    """Called by a collective that has failed in a program that a thread of Python's runs itself."""
    text = f"{_CODES[code]}: {message.decode(errors='replace')}"
    return int(raise_later(text, _plugin.library.rueda_xla_has_raised))


_plugin.library.rueda_xla_use_python(ctypes.pythonapi.PyGILState_GetThisThreadState, _raise)


def register(primitive, lower, platform="cpu"):
    """The primitive becomes what ``lower`` makes, anew at each place in a program."""
    mlir.register_lowering(primitive, lower, platform=platform, cacheable=False)


def is_any_under_way():
    """Are there operations, of all threads, that XLA waits for?"""
    return _plugin.library.rueda_xla_under_way() != 0


def text_of_loss(error):
    """The text of an error that may come from a lost rank, else None."""
    text = str(error)
    is_loss = isinstance(error, jax.errors.JaxRuntimeError) and text.startswith(("UNAVAILABLE", "CANCELLED"))
    return text if is_loss else None


@contextlib.contextmanager
def jax_errors():
    """What goes by the host's memory fails as programs do, by JAX's error; it is still rueda's as well."""
    try:
        yield
    except HorovodInternalError as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise
        if isinstance(error, RankLostError):
            code = "UNAVAILABLE"
        else:
            code = "FAILED_PRECONDITION" if error.ranks_disagree else "ABORTED"
        both = _both(type(error))(f"{code}: {error}")
        vars(both).update(vars(error))
        raise both.with_traceback(error.__traceback__) from None


@functools.lru_cache(maxsize=None)
def _both(kind):
    def plain(error):
        return kind, error.args, vars(error)

    parts = {"__module__": kind.__module__, "__reduce__": plain}  # pickled, it is rueda's alone
    return type(kind.__name__, (jax.errors.JaxRuntimeError, kind), parts)


def _begin():
    """In a new world. What was traced in another one has its ranks and sizes in it."""
    if _plugin.used is not None:
        jax.clear_caches()
        dispatch.runtime_tokens.clear()  # of messages of the other world
    attach()


runtime.on_entering.append(_begin)
