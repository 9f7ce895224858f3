"""Libraries beside librueda whose functions a framework calls, and the context that they use."""

import ctypes
import os

from rueda import _ffi
from rueda._runtime import runtime


def plugin_path(name):
    """Where the library ``librueda_NAME.so`` is."""
    return os.path.join(os.path.dirname(_ffi.library_path()), f"librueda_{name}.so")


class Plugin:
    """The library ``librueda_NAME.so``."""

    def __init__(self, name):
        path = plugin_path(name)
        self.library = _ffi.open_library(path, f"librueda_{name}")
        _ffi.require_abi(path, getattr(self.library, f"rueda_{name}_abi_version")())
        self._use = getattr(self.library, f"rueda_{name}_use")
        self._use.restype = None
        self._use.argtypes = [ctypes.c_void_p]
        self.used = None  # the Context that the framework's calls use

    def attach(self):
        """Calls use the running context from now on; HorovodInternalError when not initialised."""
        context = runtime.require_context()
        if context is not self.used:
            self._use(context)
            self.used = context
