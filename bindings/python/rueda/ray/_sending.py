"""A function on its way to ranks: what cannot be pickled is found out before any rank has begun."""

import functools

import ray


def send(function, args=(), kwargs=None):
    """Ray's reference to ``(function, args, kwargs)``, which all ranks are given, pickled once.

    ValueError, which names the function, if that cannot be done.
    """
    if not callable(function):
        raise ValueError(f"expected a function to run, found {function!r}")
    work = (function, tuple(args or ()), dict(kwargs or {}))
    try:
        return ray.put(work)
    except Exception as error:
        raise cannot(function, error) from error


def cannot(function, error):
    """The ValueError for a function that cannot be pickled."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", repr(function))
    reason = str(error.__cause__ or error).splitlines()[0]
    return ValueError(f"{name} or its arguments cannot be sent to the ranks: {reason}")
