"""One user of a context: what is handed to the library where it wants a ``rueda_context``."""

import ctypes

from rueda import _ffi
from rueda._sites import Sites


class Context:
    """Owns one count of a rueda_context; pass it to the library as it is.

    Whoever has it may use it without a lock, from any thread, whatever others do meanwhile: a call keeps
    its arguments, so the context lives on, and after a shutdown the library answers with an error.
    """

    __slots__ = ("__weakref__", "_as_parameter_", "_sites")

    def __init__(self, pointer):
        self._as_parameter_ = ctypes.c_void_p(pointer)
        self._sites = Sites()

    def site(self):
        """The number of the place that the runtime is called from now; a persistent request keeps it."""
        return self._sites.number(self)

    def __del__(self, release=_ffi.library.rueda_context_release):
        release(self._as_parameter_)
