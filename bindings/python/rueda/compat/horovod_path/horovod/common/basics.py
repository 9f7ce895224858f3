"""Horovod's ``horovod.common.basics``, by rueda."""

from rueda.common import basics as _basics
from rueda.common.basics import *  # noqa: F401,F403


class HorovodBasics:
    """Life cycle and topology as one object. What it is made with named a compiled extension."""

    def __init__(self, pkg_path=None, *names):
        for name in _basics.__all__:
            setattr(self, name, getattr(_basics, name))
