"""Reads the memory of other ranks of this host, where the kernel lets it: half the copies of a message.

    a rank      (its pid, where its table is) ──to all──>  table: a cookie, the address of each of its arrays
    who lacks   reads the table, then what it wants, by process_vm_readv, chunk by chunk, each digested in the cache

The owner leaves its arrays as they are meanwhile. What has been read is to be checked by its digest like anything else
that has come: its owner may have been lost, and gone on elsewhere.
"""

import ctypes
import os
import secrets

from rueda import _ffi
from rueda._numpy import np


class Offer:
    """This rank's arrays, for others to read as long as it lives. ``words``, four integers, are what `Source` takes."""

    def __init__(self, arrays):
        cookie = secrets.randbits(63)
        self._table = np.array([cookie, *(array.ctypes.data for array in arrays)], np.uint64)
        self.words = os.getpid(), self._table.ctypes.data, self._table.size, cookie


class Source:
    """Another rank's arrays. Threads: any."""

    def __init__(self, words):
        self._pid, address, count, cookie = map(int, words)
        self._table = np.zeros(count, np.uint64)
        into = Ranges([self._table.view(np.uint8)], [[(0, 0, self._table.nbytes)]])
        # A pid of another namespace is that of somebody else here.
        self.is_there = into.read(0, self._pid, np.array([address], np.uint64)) and int(self._table[0]) == cookie

    def addresses(self, ranges):
        """Where the owner has what these ranges of one's own arrays are to get: uint64, one for each."""
        return self._table[1 + ranges.places] + ranges.firsts

    def read(self, ranges, piece, addresses):
        """Fills a piece of ``ranges``. Returns whether all has come."""
        return ranges.read(piece, self._pid, addresses)


class Ranges:
    """Pieces of arrays in memory. Threads: any, each piece by one at a time.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        Of uint8, one-dimensional.
    pieces : list of list of (int, int, int)
        Of each piece, its parts: (array, first byte, byte behind the last).

    Attributes
    ----------
    digests : numpy.ndarray, (pieces, 16) uint8
        Of each piece, as it was when it was digested or read last.
    """

    def __init__(self, arrays, pieces):
        self._arrays = arrays  # they live as long
        flat = np.array([part for parts in pieces for part in parts], np.uint64).reshape(-1, 3)
        self.places, self.firsts = flat[:, 0].astype(np.int64), flat[:, 1]
        starts = np.array([array.ctypes.data for array in arrays], np.uint64)
        self._addresses = starts[self.places] + self.firsts
        self._sizes = flat[:, 2] - self.firsts
        self._ends = np.cumsum([len(parts) for parts in pieces], dtype=np.int64).tolist()
        self.digests = np.zeros((len(pieces), 16), np.uint8)

    def are_of(self, arrays):
        """Whether it is made of these."""
        return [_place(array) for array in arrays] == [_place(array) for array in self._arrays]

    def digest_all(self):
        for piece in range(len(self._ends)):
            self.digest(piece)

    def digest(self, piece):
        """Of it as it is now."""
        first, count = self._parts(piece)
        _ffi.library.rueda_digest(
            _pointer(ctypes.c_void_p, self._addresses, first), _pointer(ctypes.c_size_t, self._sizes, first), count, self._digest(piece)
        )

    def read(self, piece, pid, addresses):
        """From there, and its digest with it. Returns whether all has come."""
        first, count = self._parts(piece)
        return 1 == _ffi.library.rueda_read_digest(
            pid,
            _pointer(ctypes.c_uint64, addresses, first),
            _pointer(ctypes.c_void_p, self._addresses, first),
            _pointer(ctypes.c_size_t, self._sizes, first),
            count,
            self._digest(piece),
        )

    def _parts(self, piece):
        first = self._ends[piece - 1] if piece else 0
        return first, self._ends[piece] - first

    def _digest(self, piece):
        return self.digests.ctypes.data + 16 * piece


def _place(array):
    return array.ctypes.data, array.size


def _pointer(kind, numbers, first):
    """To those of an array of 8-byte numbers from there on."""
    return ctypes.byref(kind.from_buffer(numbers, 8 * first))
