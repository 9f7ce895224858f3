"""What each rank of `rueda.run` executes: calls the function and leaves its result in a file.

    python run_task.py FOLDER

FOLDER belongs to `rueda.compat.run` and can be read by this user alone:

===============  ==============================================================================
path.json        the caller's ``sys.prefix`` and ``sys.path``
function.pickle  (function, args, kwargs)
<rank>.pickle    ("result", what it returned) or ("error", the exception; None if unpicklable)
<rank>.txt       beside an error: its traceback
===============  ==============================================================================

The rank is that of the end: in an elastic job it may have been another at the start. Files appear whole: they are renamed into place.
"""

import json
import os
import sys

# Run by its path; modules beside this file are not to be found by their bare names.
_HERE = os.path.dirname(os.path.abspath(__file__))


def find_modules_as_the_caller(prefix, path):
    """Makes ``sys.path`` the caller's; another interpreter keeps its own in front."""
    own = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    if sys.prefix == prefix:
        sys.path[:] = path
    else:
        sys.path[:] = own + [entry for entry in path if entry not in own]


def leave(path, data):
    """Writes a file that only this user can read; it appears whole."""
    unfinished = path + ".part"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.rename(unfinished, path)


def _load(folder):
    from rueda import _objects

    with open(os.path.join(folder, "function.pickle"), "rb") as file:
        try:
            return _objects.pickle.load(file)
        except Exception as error:
            raise RuntimeError(
                "the function or its arguments cannot be loaded on this rank; what is defined in "
                "the caller's main program travels only with cloudpickle (pip install cloudpickle)"
            ) from error


def _result_bytes(value):
    from rueda import _objects

    try:
        return _objects._pickle(("result", value))
    except Exception as error:
        raise RuntimeError(
            f"what the function returned ({type(value).__name__}) cannot be pickled"
        ) from error


def _error_bytes(error):
    from rueda import _objects

    try:
        data = _objects._pickle(("error", error))
        _objects.pickle.loads(data)  # some exceptions cannot be made again
        return data
    except Exception:
        return _objects._pickle(("error", None))


def _mine(folder):
    """This rank's files, without their endings."""
    rank = os.environ.get("RUEDA_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]  # mpirun's
    return os.path.join(folder, rank)


def main(folder):
    with open(os.path.join(folder, "path.json"), encoding="utf-8") as file:
        find_modules_as_the_caller(*json.load(file))
    import traceback

    try:
        function, args, kwargs = _load(folder)
        data = _result_bytes(function(*args, **kwargs))
    except BaseException as error:
        inside = error.__traceback__.tb_next  # the user's part
        lines = traceback.format_exception(type(error), error, inside)
        leave(_mine(folder) + ".txt", "".join(lines).encode("utf-8", "replace"))
        leave(_mine(folder) + ".pickle", _error_bytes(error))
        raise
    leave(_mine(folder) + ".pickle", data)


if __name__ == "__main__":
    main(sys.argv[1])
