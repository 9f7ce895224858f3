"""Where operations are called from: the first frame outside of this package."""

import os
import sys

from rueda import _ffi

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Frames of these take part in a call without being where somebody wrote it.
_MOST_PLACES = 4096
_PASSED_THROUGH = (
    os.sep + os.path.join("site-packages", "torch") + os.sep,
    os.sep + os.path.join("dist-packages", "torch") + os.sep,  # Debian's
    os.sep + "contextlib.py",
    os.sep + "typing_extensions.py",  # of functions that PyTorch has renamed
    os.sep + "warnings.py",
    os.sep + "_py_warnings.py",
)


class Sites:
    """Numbers of call sites in one context. Any thread."""

    def __init__(self):
        self._of_place = {}  # (code, line): number
        self._of_file = {}  # file name of a code: is it passed through

    def number(self, context):
        """Of the place that the package is called from now."""
        frame, known = sys._getframe(2), self._of_file
        while frame is not None:
            path = frame.f_code.co_filename
            passed = known.get(path)
            if passed is None:
                passed = self._of_file[path] = _is_passed_through(path)
            if not passed:
                break
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


def _is_passed_through(path):
    return path.startswith(_PACKAGE) or any(part in path for part in _PASSED_THROUGH)


def _short(path):
    """As in a traceback, but below the current folder without it."""
    try:
        folder = os.getcwd() + os.sep
    except OSError:  # it has been removed
        return path
    return path[len(folder) :] if path.startswith(folder) else path
