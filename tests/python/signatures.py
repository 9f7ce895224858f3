"""Parameters and defaults of functions, as `horovod_facts` spells them."""

import importlib
import inspect
import sys

from rueda.compat import horovod


def load(name):
    """A module of the package horovod, as with ``--horovod``."""
    if horovod.path() not in sys.path:
        sys.path.insert(0, horovod.path())
    return importlib.import_module(name)


def _spelled(default):
    if getattr(default, "__name__", None) == "NoneCompressor":
        return "NONE"
    return "SET" if getattr(default, "process_set_id", None) == 0 else repr(default)


def parameters(function):
    """``["tensor", "name=None", "process_set=SET"]``"""
    return [
        p.name + ("" if p.default is p.empty else "=" + _spelled(p.default))
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]


def differences(module, wanted):
    """What a module or class has not, or has otherwise: by name."""
    found = {}
    for name, spelled in wanted.items():
        if not hasattr(module, name):
            found[name] = "missing"
            continue
        if spelled is None:
            continue
        has = parameters(getattr(module, name))
        ours = spelled.split(", ") if spelled else []
        if has[: len(ours)] != ours or not all("=" in extra for extra in has[len(ours) :]):
            found[name] = ", ".join(has)
    return found
