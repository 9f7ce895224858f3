"""Operations whose results are kept and given again, for code that runs twice (activation checkpointing).

The first time that a `Region` is entered its operations run, and it keeps what they gave. Whenever it is entered
again they do not run: each gets what it got before, in the same order. So what is recomputed sends nothing, and
it does not matter in which order, or whether at all, other ranks recompute it.
"""

import contextlib
import functools
import threading

from rueda import _ranges
from rueda._runtime import runtime

entered = 0  # regions that threads are in now: whether it is worth a look

_lock = threading.Lock()
_here = threading.local()  # .regions: those that this thread is in, the innermost last


class Region:
    """What a piece of code gets from other ranks."""

    def __init__(self):
        self._results = []
        self._next = None  # None: it runs for the first time

    @contextlib.contextmanager
    def run(self):
        """Around the code. Gives whether it has run before."""
        global entered
        before = regions()
        with _lock:
            entered += 1
        _here.regions = [*before, self]
        try:
            yield self._next is not None
        finally:
            self._next = 0
            _here.regions = before
            with _lock:
                entered -= 1

    @property
    def repeats(self):
        return self._next is not None

    def keep(self, result):
        self._results.append(result)

    def take(self, kind):
        """The next result."""
        known = self._next < len(self._results)
        result = self._results[self._next] if known else None
        if result is None or result.kind != kind:
            raise RuntimeError(
                f"what is checkpointed called {kind} when it was recomputed, and before "
                f"{result.kind if known else 'no more collectives'}: it must do the same each time"
            )
        self._next += 1
        return result


class _Result:
    def __init__(self, kind):
        self.kind, self._has_come, self._value = kind, False, None

    def set(self, value):
        self._has_come, self._value = True, _copied(value)

    def give(self, target):
        """As the operation gives it: in ``target``, or new."""
        if not self._has_come:
            raise RuntimeError(
                f"what is checkpointed was recomputed before its {self.kind} had been synchronized"
            )
        value = self._value
        if target is None:
            return _copied(value)
        if isinstance(value, tuple) and not isinstance(target, tuple):  # alltoall: with how much has come
            _put(value[0], target)
            return (target, *_copied(value[1:]))
        _put(value, target)
        return target


def regions():
    return getattr(_here, "regions", [])


def repeats():
    """Whether this thread recomputes."""
    return any(region.repeats for region in regions())


def once(kind, call, target=None, handles=False):
    """What ``call()`` gives or, where it is recomputed, what it gave.

    Parameters
    ----------
    kind : str
    call : callable
        An operation. What it returns may be tensors, arrays and tuples and lists of them.
    target : tensor, array or tuple of them, optional
        Where the operation puts its result, and what is returned then.
    handles : bool
        It returns a handle instead.
    """
    here = regions()
    if not here:
        return call()
    repeating = [region for region in here if region.repeats]
    if repeating:
        results = [region.take(kind) for region in repeating]
        given = results[-1].give(target)
        kept = results[-1]
        given = runtime.handle_of(given) if handles else given
    else:
        _here.regions = []  # what it is made of is not its result
        try:
            given = call()
        finally:
            _here.regions = here
        kept = _Result(kind)
        if handles:
            runtime.tell_result(given, kept.set)
        else:
            kept.set(given)
    for region in here:
        if not region.repeats:
            region.keep(kept)
    return given


def replayed(method):
    """Makes a method of `Collectives` one of those, which profilers see."""
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]

    def replay(self, *args, **kwargs):
        given = {**dict(zip(names, args)), **kwargs}
        target = given.get("out")
        if method.__name__ == "recv":
            target = given["tensor"]
        elif given.get("in_place"):
            target = given["tensors"] = tuple(given["tensors"])
        call = functools.partial(method, self, **given)
        return once(method.__name__, call, target, not self.waits)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        replays = entered and regions()
        if _ranges.is_on():
            run = replay if replays else method
            return _ranges.call(method.__name__, run, self, *args, **kwargs)
        if not replays:
            return method(self, *args, **kwargs)
        return replay(self, *args, **kwargs)

    return call


def _copied(value):
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(each) for each in value)
    if hasattr(value, "detach"):
        return value.detach().clone()
    return value.copy() if hasattr(value, "dtype") else value


def _put(value, target):
    if isinstance(target, (tuple, list)):
        for one, other in zip(value, target):
            _put(one, other)
    elif hasattr(target, "detach"):
        target.detach().copy_(value)
    else:
        target[...] = value
