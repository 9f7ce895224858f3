"""Arrays in memory that this host's ranks share."""

import math

from rueda._heap import shared_bytes
from rueda._numpy import np
from rueda._runtime import runtime


def empty(shape, dtype=float):
    """A C-ordered array in memory that this host's ranks share; all zeros.

    Collectives work on it without a copy. It may be used like any array and lives as long as any
    view of it, also after `shutdown`.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : data-type
        Any that holds no Python objects.

    Raises
    ------
    MemoryError
        The shared memory is used up; says how much is in use (``RUEDA_HEAP_BYTES``).
    HorovodInternalError
        Not initialised.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError(f"shared memory cannot hold Python objects (dtype {dtype})")
    runtime.require_running()
    shape = np.broadcast_to(np.False_, shape).shape  # NumPy's own checks, no memory
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    return shared_bytes(nbytes).view(dtype).reshape(shape)


zeros = empty


def empty_like(prototype, dtype=None):
    """`empty` with the shape and, unless ``dtype`` is given, the type of ``prototype``."""
    prototype = np.asarray(prototype)
    return empty(prototype.shape, prototype.dtype if dtype is None else dtype)
