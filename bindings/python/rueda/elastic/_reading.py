"""Reads the memory of other ranks of this host, where the kernel lets it: half the copies of a message.

    a rank      (its pid, where its table is) ──to all──>  table: a cookie, the address of each of its arrays
    who lacks   reads the table, then what it wants, by process_vm_readv

The owner leaves its arrays as they are meanwhile. What has been read is to be checked by its digest like anything else
that has come: its owner may have been lost, and gone on elsewhere.
"""

import ctypes
import os
import secrets

from rueda._numpy import np

MOST = 1024  # ranges in one call: IOV_MAX

_read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
if _read is not None:
    _read.restype = ctypes.c_ssize_t
    _read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)


class Offer:
    """This rank's arrays, for others to read as long as it lives. ``words`` are what `Source` takes."""

    def __init__(self, arrays):
        cookie = secrets.randbits(64)
        self._table = np.array([cookie, *(array.ctypes.data for array in arrays)], np.uint64)
        self.words = os.getpid(), self._table.ctypes.data, self._table.size, cookie


class Source:
    """Another rank's arrays. Threads: any."""

    def __init__(self, words):
        self._pid, address, count, cookie = words
        self._table = np.zeros(count, np.uint64)
        # A pid of another namespace is that of somebody else here.
        is_read = _copy(self._pid, [(address, self._table.nbytes)], [self._table.view(np.uint8)])
        self.is_there = is_read and int(self._table[0]) == cookie

    def read(self, piece, parts):
        """Its [(array, first byte, byte behind the last)] into these byte arrays. Returns whether all has come."""
        remote = [(int(self._table[1 + place]) + first, last - first) for place, first, last in piece]
        return all(_copy(self._pid, remote[n : n + MOST], parts[n : n + MOST]) for n in range(0, len(parts), MOST))


def _copy(pid, remote, parts):
    if _read is None:
        return False
    there = np.array(remote, np.uint64)
    here = np.array([(part.ctypes.data, part.size) for part in parts], np.uint64)
    got = _read(pid, here.ctypes.data, len(here), there.ctypes.data, len(there), 0)
    return got == sum(part.size for part in parts)
