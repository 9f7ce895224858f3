"""Where batches lie: in memory that the host's ranks share, which is used again and again, so its pages are made once."""

from math import prod

from rueda._heap import shared_bytes
from rueda._numpy import np
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError


def private(shape, dtype):
    """An array of the process's own."""
    return np.empty(shape, dtype)


def shared(shape, dtype):
    """An array with anything in it, shared where rueda runs and has room, else the process's own. Any thread."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes and not dtype.hasobject and runtime.is_initialized():
        try:
            return shared_bytes(nbytes, zeroed=False).view(dtype).reshape(shape)
        except (MemoryError, HorovodInternalError):
            pass  # used up, or another thread has left the job
    return np.empty(shape, dtype)
