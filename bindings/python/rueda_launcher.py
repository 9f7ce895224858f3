"""Starts the programs that the package carries. Apart from it, so that starting imports no NumPy.

The program takes this process over, so signals and the exit code are its own.
"""

import importlib.util
import os
import sys

IN_PYTHON = ("migrate", "demo", "new")  # commands of `rueda`
USAGE_ERROR = 2  # exit code of ruedarun for a wrong command line


def _own(program):
    package = importlib.util.find_spec("rueda")
    return os.path.join(package.submodule_search_locations[0], "bin", program)


def launcher():
    """The ruedarun that starts jobs for the rest of the package: RUEDA_RUEDARUN, else its own."""
    return os.environ.get("RUEDA_RUEDARUN") or _own("ruedarun")


def _become(program):
    become(_own(program), sys.argv[1:], os.environ)


def become(path, arguments, environment):
    """Replaces this process by a program; exits with a message when that cannot be."""
    program = os.path.basename(path)
    try:
        os.execve(path, [path, *arguments], environment)
    except OSError as error:
        sys.exit(f"{program}: cannot start {path}: {error.strerror}; reinstall the rueda package")


def ruedarun():
    """The launcher: ``ruedarun -np 2 python train.py``."""
    _become("ruedarun")


def rueda():
    """The tool; those of its commands that are about Python are written in it."""
    if sys.argv[1:2] and sys.argv[1] in IN_PYTHON:
        from rueda.begin import main

        sys.exit(main(sys.argv[1:]))
    _become("rueda")
