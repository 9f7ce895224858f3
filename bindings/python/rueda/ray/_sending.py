"""A function on its way to ranks: what cannot be pickled is found out before any rank has begun."""

import functools
import io

import ray
from ray import cloudpickle


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
        raise _cannot(function, error) from error


def pickled(function, work):
    """``work``, which has the function in it, as bytes for processes that Ray has not started; ValueError as `send`."""
    data = io.BytesIO()
    try:
        _WithoutRay(data).dump(work)
    except Exception as error:
        raise _cannot(function, error) from error
    return data.getvalue()


class _WithoutRay(cloudpickle.CloudPickler):
    """Refuses what means something to workers of Ray alone."""

    def persistent_id(self, value):
        if isinstance(value, (ray.ObjectRef, ray.actor.ActorHandle)):
            raise TypeError(
                f"{value!r} is Ray's, and ranks of an elastic job are not connected to Ray; give them plain data or files"
            )
        return None


def _cannot(function, error):
    """The ValueError for a function that cannot be pickled."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", repr(function))
    reason = str(error.__cause__ or error).splitlines()[0]
    return ValueError(f"{name} or its arguments cannot be sent to the ranks: {reason}")
