"""Where operations are called from: the first frame outside of this package, once per name."""

import os
import sys

from rueda import _ffi

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MOST_NAMES = 4096
# Frames of these take part in a call without being where somebody wrote it.
_PASSED_THROUGH = (
    os.sep + os.path.join("site-packages", "torch") + os.sep,
    os.sep + "contextlib.py",
)


class Sites:
    """Numbers of call sites in one context. Used with the runtime's lock held."""

    def __init__(self):
        self._of_name = {}  # (kind, name): number
        self._of_place = {}  # (code, line): number
        self._of_file = {}  # file name of a code: is it passed through

    def number(self, context, kind, name):
        """For an operation that is submitted now; a name keeps the place of its first time."""
        if name is not None:
            known = self._of_name.get((kind, name))
            if known is not None:
                return known
        number = self._here(context)
        if name is not None and len(self._of_name) < _MOST_NAMES:
            self._of_name[(kind, name)] = number
        return number

    def _here(self, context):
        frame = sys._getframe(2)
        while frame is not None and self._is_passed_through(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:  # a thread of a framework: a gradient's hook
            return 0
        code, line = frame.f_code, frame.f_lineno
        number = self._of_place.get((code, line))
        if number is None:
            text = f"{_short(code.co_filename)}:{line} in {code.co_name}"
            number = _ffi.library.rueda_call_site(context, text.encode("utf-8", "replace"))
            self._of_place[(code, line)] = number
        return number

    def _is_passed_through(self, path):
        known = self._of_file.get(path)
        if known is None:
            known = path.startswith(_PACKAGE) or any(part in path for part in _PASSED_THROUGH)
            self._of_file[path] = known
        return known


def _short(path):
    """As in a traceback, but below the current folder without it."""
    folder = os.getcwd() + os.sep
    return path[len(folder) :] if path.startswith(folder) else path
