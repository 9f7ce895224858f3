"""The loaded librueda, and what its codes become in Python.

`rueda._abi`, generated from the C header, has the structs, constants and signatures; they are to be
had from here too. Nothing here keeps state apart from the loaded library. Every call releases the
GIL, so a thread that waits in the library never keeps others from computing.
"""

import ctypes
import glob
import os

from rueda._abi import *  # noqa: F403
from rueda._abi import (
    ABI_VERSION,
    ALREADY_EXISTS,
    DEADLINE_EXCEEDED,
    FUNCTIONS,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    VERSION,
)
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError

MAX_NDIM = 64  # more than NumPy or PyTorch can make

# What each code becomes in Python. Codes that are not here are faults of the runtime.
_EXCEPTIONS = {
    INVALID_ARGUMENT: ValueError,
    ALREADY_EXISTS: ValueError,
    DEADLINE_EXCEEDED: DeadlineExceeded,
    RESOURCE_EXHAUSTED: MemoryError,
    UNIMPLEMENTED: NotImplementedError,
}


def find_lost(rank):
    """The `Lost` of the running context, or None. The runtime puts its own here."""
    return None


def exception(code, error):
    """The Python exception for a code other than OK and a filled-in `Error`."""
    message = error.message.decode("utf-8", "replace") or f"rueda failed with code {code}"
    if error.lost_rank >= 0:
        raised = RankLostError(message)
        raised.rank = error.lost_rank
        lost = find_lost(error.lost_rank)
        if lost is None:  # during init
            return raised
        for name in ("rank", "pid", "operations", "step"):
            setattr(raised, name, getattr(lost, name))
        for name in ("host", "operation", "cause"):
            setattr(raised, name, getattr(lost, name).decode("utf-8", "replace"))
        raised.cause_is_final = lost.cause_is_final != 0
        return raised
    raised = _EXCEPTIONS.get(code, HorovodInternalError)(message)
    raised.ranks_disagree = code == FAILED_PRECONDITION
    return raised


def library_path():
    """Where librueda is: ``RUEDA_LIBRARY`` if set, else beside this package."""
    chosen = os.environ.get("RUEDA_LIBRARY")
    if chosen:
        return chosen
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    found = sorted(glob.glob(os.path.join(folder, "librueda.so*")), key=len)
    if not found:
        raise ImportError(
            f"librueda.so is not in {folder}: install the rueda package (scripts/quickstart), "
            "or set RUEDA_LIBRARY to the library's path"
        )
    return found[0]


def open_library(path, name):
    """The library there, of this name; ImportError if it cannot be loaded."""
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cannot load {name} from {path}: {error}") from error


def require_abi(path, found):
    """ImportError unless that is the version of the C ABI that this package is for."""
    if found != ABI_VERSION:
        raise ImportError(
            f"{path} speaks ABI version {found}, this package needs {ABI_VERSION}: "
            "reinstall rueda so that both come from the same build"
        )


def _load():
    path = library_path()
    loaded = open_library(path, "librueda")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name, None)
        if function is None:
            raise ImportError(
                f"{path} has no function {name}: it belongs to another version of rueda"
            )
        function.restype = result
        function.argtypes = arguments
    require_abi(path, loaded.rueda_abi_version())
    version = loaded.rueda_version().decode()
    if version != VERSION:
        raise ImportError(
            f"{path} is of rueda {version}, this package is {VERSION}: "
            "reinstall rueda so that both come from the same build"
        )
    return loaded


library = _load()
