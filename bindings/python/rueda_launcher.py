"""Starts the programs that the package carries. Apart from it, so that starting imports no NumPy.

The program takes this process over, so signals and the exit code are its own.
"""

import importlib.util
import os
import sys


def _become(program):
    package = importlib.util.find_spec("rueda")
    path = os.path.join(package.submodule_search_locations[0], "bin", program)
    try:
        os.execv(path, [path] + sys.argv[1:])
    except OSError as error:
        sys.exit(f"{program}: cannot start {path}: {error.strerror}; reinstall the rueda package")


def ruedarun():
    """The launcher: ``ruedarun -np 2 python train.py``."""
    _become("ruedarun")


def rueda():
    """The tool."""
    _become("rueda")
