"""Memory that the ranks of a host share, for arrays and tensors: collectives on it need no copy."""

from rueda import _ffi
from rueda._memory import memory_view
from rueda._numpy import np
from rueda._runtime import runtime

_free = _ffi.library.rueda_free


class Block:
    """Memory, zeroed unless said otherwise, that goes back when this object dies, also after ``shutdown``."""

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, nbytes, zeroed=True):
        self.address = None
        self.address = runtime.allocate(nbytes, zeroed)
        self.nbytes = nbytes

    def __reduce__(self):
        raise TypeError("shared memory cannot be copied or pickled; copy the array that is in it")

    def __del__(self, free=_free):
        # In a forked child the library does nothing: the memory is the parent's.
        if self.address is not None:
            free(self.address)


def shared_bytes(nbytes, zeroed=True):
    """A uint8 array in a block of its own, which it and every view of it keep alive."""
    block = Block(nbytes, zeroed)
    return np.frombuffer(memory_view(block.address, nbytes, block), np.uint8)
