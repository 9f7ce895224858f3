"""Horovod's names for rueda. Whoever imports this has asked for it: see ``rueda.compat.horovod``."""

from horovod import _absent

__version__ = "0.28.1"  # of the Horovod whose names, arguments and errors these are

_absent.install()


def __getattr__(name):
    if name == "run":  # on demand, so that ranks need not load the launcher's side
        from horovod.runner import run

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
