"""Buckets that move to memory that the ranks of a host share, in which nothing has to be copied.

What is reduced as a whole in every backward pass, DDP's buckets before all, moves there in its second pass.

The storage stays the same object, and so do its views; only its pages change: PyTorch moves it to pages
of its own (`_share_fd_cpu_`), in whose place then come pages of the shared heap. From then on the
library gets the address in the heap, and reduces what lies there without a copy.
"""

import ctypes
import os
import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from rueda import _ffi
from rueda._heap import Block
from rueda.common.exceptions import HorovodInternalError

LEAST = 1 << 20  # bytes that are worth a move

_in_pass = torch._C._current_graph_task_id


class Bucket:
    """A storage that was reduced as a whole: a candidate first, then one that has been moved."""

    __slots__ = ("_base", "_block", "_busy", "_pass", "_ref", "_refused")

    def __init__(self, storage):
        self._ref = StorageWeakRef(storage)
        self._base = storage.data_ptr()
        self._pass, self._busy = _in_pass(), 0
        self._block, self._refused = None, False

    def is_gone(self):
        return self._ref.expired()

    def is_at(self, storage):
        return storage.data_ptr() == self._base

    def place(self, storage):
        """Where to reduce it: moves it, when it is reduced in a second pass and nothing runs on it."""
        if self._block is not None:
            return self._block.address
        if not self._refused and self._busy == 0 and self._pass != _in_pass():
            self._move(storage)
        return self._base if self._block is None else self._block.address

    def begun(self):
        """What to call when the reduction has ended well; until then the storage stays where it is."""
        if self._block is not None:
            return None
        self._busy += 1
        return self._ended

    def _ended(self, _):
        self._busy -= 1

    def _move(self, storage):
        size = storage.nbytes()
        self._refused = True  # one that cannot be moved now is not tried again
        if storage.is_shared() or not _has_room(size):
            return
        try:
            block = Block(size, zeroed=False)
            fd, _ = storage._share_fd_cpu_()
        except (MemoryError, RuntimeError, HorovodInternalError):
            return
        ctypes.memmove(block.address, storage.data_ptr(), size)
        if (
            _ffi.library.rueda_map_memory(block.address, size, storage.data_ptr(), None)
            == _ffi.OK
        ):
            os.ftruncate(fd, 0)  # those pages were only there to be replaced
            self._block = block
        self._base = storage.data_ptr()


def _has_room(size):
    """For PyTorch's own pages, while they are there: too little would be a SIGBUS."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= 4 * size * max(1, os.cpu_count() or 1)


class Buckets:
    """Those of a process, in whichever group: by storage."""

    def __init__(self):
        self._lock = threading.Lock()
        self._known = {}

    def of(self, tensor):
        """The `Bucket` of a tensor that is to be reduced; None: it stays what it is."""
        if tensor.nbytes < LEAST or not tensor.is_cpu or _in_pass() == -1:
            return None
        storage = tensor.untyped_storage()
        bucket = self._known.get(storage._cdata)
        if bucket is not None and bucket.is_at(storage):
            return bucket if tensor.nbytes == storage.nbytes() else None
        if tensor.nbytes != storage.nbytes():
            return None
        with self._lock:
            self._drop_gone()
            bucket = self._known[storage._cdata] = Bucket(storage)
        return bucket

    def _drop_gone(self):
        for key in [key for key, bucket in self._known.items() if bucket.is_gone()]:
            del self._known[key]


buckets = Buckets()
