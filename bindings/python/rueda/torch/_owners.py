"""Which optimizer reduces a parameter's gradient, and under which name.

The newest optimizer that was given a parameter owns it: a notebook cell that is run again wraps the
same model again, and two reductions of one gradient would spoil it.

Two optimizers may have parameters of the same names (a generator and a discriminator, or no names
given at all) and have them under way at the same time. The first keeps the names as they are; later
ones get a prefix. That is counted per name since `init`, so ranks that make the same optimizers in
the same order agree on it.
"""

import weakref

from rueda._runtime import runtime

_owners: dict = {}  # id of a parameter: (weak reference to it, to its optimizer)
_uses: dict = {}  # name: how many optimizers have it
_counted_at = None  # the `Place` of the init since which that was counted


def owner(p):
    """The optimizer that owns a parameter, or None."""
    parameter, optimizer = _owners.get(id(p), (lambda: None, None))
    return optimizer() if parameter() is p else None


def own(p, optimizer):
    """From now on ``optimizer`` owns the parameter; returns who did before, or None."""
    before = owner(p)
    key = id(p)
    _owners[key] = weakref.ref(p, lambda _: _owners.pop(key, None)), weakref.ref(optimizer)
    return before


def prefix(names):
    """What to put in front of an optimizer's names so that they are its own."""
    global _counted_at
    if runtime.place is not _counted_at:
        _counted_at = runtime.place
        _uses.clear()
    number = 1 + max((_uses.get(name, 0) for name in names), default=0)
    for name in names:
        _uses[name] = number
    return "" if number == 1 else f"optimizer{number}."
