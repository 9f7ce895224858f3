"""Where operations are called from: the first frame outside of this package."""

import os
import sys

from rueda import _ffi

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames of these take part in a call without being where somebody wrote it.
_MOST_PLACES = 4096
_PASSED_THROUGH = (
    os.sep + os.path.join("site-packages", "torch") + os.sep,
    os.sep + "contextlib.py",
)


class Sites:
    """Numbers of call sites in one context. Used with the runtime's lock held."""

    def __init__(self):
        self._of_place = {}  # (code, line): number
        self._of_file = {}  # file name of a code: is it passed through

    def number(self, context):
        """Of the place that the runtime is called from now. What is prepared keeps it."""
        frame = sys._getframe(1)
        while frame is not None and self._is_passed_through(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:  # a thread of a framework: a gradient's hook
            return 0
        code, line = frame.f_code, frame.f_lineno
        number = self._of_place.get((code, line))
        if number is None:
            text = f"{_short(code.co_filename)}:{line} in {code.co_name}"
            number = _ffi.library.rueda_call_site(context, text.encode("utf-8", "replace"))
            if len(self._of_place) < _MOST_PLACES:
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
    try:
        folder = os.getcwd() + os.sep
    except OSError:  # it has been removed
        return path
    return path[len(folder) :] if path.startswith(folder) else path
