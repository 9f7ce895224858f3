"""Memory that the library owns, as something NumPy and PyTorch can look into without a copy."""

import numpy as np


class _Memory:
    """Keeps ``owner`` alive for as long as an array looks at its memory."""

    def __init__(self, address, nbytes, owner):
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, False),
        }


def bytes_view(address, nbytes, owner):
    """A writable uint8 array over the memory; it and every view of it hold ``owner``."""
    return np.asarray(_Memory(address, nbytes, owner))
