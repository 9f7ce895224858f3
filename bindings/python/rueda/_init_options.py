"""Where this process is in its job, where the program says it itself (``rueda_init_options``)."""

import ctypes

from rueda import _ffi
from rueda._numbers import whole_number

_given = None  # arguments of init, from whoever started this process


def give(place):
    """What ``init()`` without arguments means from now on: a dict of its arguments; None: what the launcher says.

    For what starts ranks in processes of its own and calls a function there (Ray, Spark); so no key is in
    the environment, which programs that the function starts would inherit.
    """
    global _given
    _given = place


def init_options(rank=None, size=None, job=None, rendezvous=None, key=None):
    """The library's options; None where the launcher decides. ValueError for what is no rank.

    Without arguments they are those that were given to this process, if any were (`give`).

    ``key`` is a secret: the library makes the job's key from it, and it is in no message.
    """
    if rank is None and size is None and job is None and rendezvous is None and key is None:
        return None if _given is None else init_options(**_given)
    options = _ffi.InitOptions(ctypes.sizeof(_ffi.InitOptions))
    options.rank = -1 if rank is None else whole_number("init: rank", rank, 0, 31)
    options.size = -1 if size is None else whole_number("init: size", size, 1, 31)
    options.job = _text("job", job)
    options.rendezvous = _text("rendezvous", rendezvous)
    if key is not None:
        if not isinstance(key, bytes):
            raise ValueError(f"init(key=...): expected bytes, not {type(key).__name__}")
        secret = ctypes.create_string_buffer(key, max(len(key), 1))
        options.key = ctypes.cast(secret, ctypes.c_void_p)
        options.key_bytes = len(key)
        options.secret = secret  # lives as long
    return options


def _text(name, value):
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"init({name}={value!r}): expected a text that is not empty")
    return value.encode()
