"""Starts the programs that the package carries. Apart from it, so that starting imports no NumPy.

The program takes this process over, so signals and the exit code are its own.
"""

import importlib.util
import os
import sys

USAGE_ERROR = 2  # exit code of ruedarun for a wrong command line


def path_of(program):
    """The package's own program; RUEDA_RUEDARUN chooses another launcher."""
    package = importlib.util.find_spec("rueda")
    own = os.path.join(package.submodule_search_locations[0], "bin", program)
    return (program == "ruedarun" and os.environ.get("RUEDA_RUEDARUN")) or own


def become(program, arguments, environment):
    """Replaces this process; exits with a message when that cannot be."""
    path = path_of(program)
    try:
        os.execve(path, [path, *arguments], environment)
    except OSError as error:
        sys.exit(f"{program}: cannot start {path}: {error.strerror}; reinstall the rueda package")


def ruedarun():
    """The launcher: ``ruedarun -np 2 python train.py``."""
    become("ruedarun", sys.argv[1:], os.environ)


def rueda():
    """The tool."""
    become("rueda", sys.argv[1:], os.environ)
