"""A file of one rank for what is not needed at the moment, read ahead and written behind by two threads.

The file has no name from the beginning: it is gone when the process ends, however it ends. What was written or read is
not kept in the page cache.
"""

import concurrent.futures
import errno
import os
import tempfile
import weakref

import torch

from rueda.torch._files import read_all, write_all
from rueda.torch.sharding import _pages

_ALIGNED = 64  # bytes: where tensors begin


class Extent:
    """A place in the file for some flat tensors, always the same; free again with its last reference."""

    def __init__(self, file, parts):
        self._file, self.forms, end = file, [], 0
        for part in parts:
            self.forms.append((end, part.dtype, tuple(part.shape)))
            end += -(-part.numel() * part.element_size() // _ALIGNED) * _ALIGNED
        self.nbytes = max(end, _ALIGNED)
        self.offset = file.find(self.nbytes)
        self.writing = self.reading = None

    def fits(self, parts):
        return [form[1:] for form in self.forms] == [(part.dtype, tuple(part.shape)) for part in parts]

    def write_behind(self, parts):
        """Starts; the tensors are the file's until it has ended. One at a time is under way."""
        self._file.wait()
        self.reading = None
        self.writing = self._file.start(self._write, parts)

    def read_ahead(self):
        if self.reading is None:
            self.reading = self._file.pool.submit(self._read, self.writing)

    def take(self):
        """All of the tensors."""
        self.read_ahead()
        reading, self.reading = self.reading, None
        return self._file.result_of(reading, "read")

    def read(self, number):
        """One of the tensors."""
        if self.writing is not None:
            self.writing.result()
        offset, dtype, shape = self.forms[number]
        result = torch.empty(shape, dtype=dtype)
        self._fill(offset, result.reshape(-1).view(torch.uint8))
        return result

    def _write(self, parts):
        for (offset, *_), part in zip(self.forms, parts):
            write_all(self._file.number, memoryview(part.reshape(-1).view(torch.uint8).numpy()), self.offset + offset)
        os.fdatasync(self._file.number)
        self._forget()

    def _read(self, writing):
        if writing is not None:
            writing.result()
        flat = _pages.flat(self.nbytes, torch.uint8)
        self._fill(0, flat)
        result = []
        for offset, dtype, shape in self.forms:
            count = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
            result.append(flat[offset : offset + count].view(dtype).view(shape))
        return result

    def _fill(self, offset, flat):
        if not read_all(self._file.number, memoryview(flat.numpy()), self.offset + offset):
            raise OSError(errno.EIO, "state of the optimizer is missing", self._file.folder)
        self._forget()

    def _forget(self):
        os.posix_fadvise(self._file.number, self.offset, self.nbytes, os.POSIX_FADV_DONTNEED)

    def __del__(self):
        if hasattr(self, "offset"):
            self._file.free.setdefault(self.nbytes, []).append((self.offset, self.writing))


class File:
    """In a folder. OSError names that, where it cannot be."""

    def __init__(self, folder):
        self.folder, self.free, self._end, self._writing = os.fspath(folder), {}, 0, None
        if not os.path.isdir(self.folder):
            raise NotADirectoryError(errno.ENOTDIR, "offload= needs a folder that is there", self.folder)
        file = tempfile.TemporaryFile(prefix="rueda-", dir=self.folder, buffering=0)
        self.number = file.fileno()
        self.pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="rueda-offload")
        weakref.finalize(self, _close, self.pool, file)

    def find(self, nbytes):
        """A place that nobody has, on the disk, not only in the file's length."""
        if self.free.get(nbytes):
            offset, writing = self.free[nbytes].pop()
            if writing is not None:
                concurrent.futures.wait([writing])
            return offset
        try:
            os.posix_fallocate(self.number, self._end, nbytes)
        except OSError as error:
            raise OSError(error.errno, f"no {nbytes} bytes for an optimizer's state: {error.strerror}", self.folder) from error
        offset, self._end = self._end, self._end + nbytes
        return offset

    def start(self, work, *arguments):
        self._writing = self.pool.submit(work, *arguments)
        return self._writing

    def wait(self):
        """For the write that is under way. OSError names the folder."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self.result_of(writing, "written")

    def result_of(self, work, done):
        try:
            return work.result()
        except OSError as error:
            raise OSError(error.errno, f"an optimizer's state was not {done}: {error.strerror}", self.folder) from error

    def extent(self, parts):
        """A place for such tensors."""
        return Extent(self, parts)


def _close(pool, file):
    """Work that is under way has the file, so there is none; but the last may have been what ends it, in its thread."""
    pool.shutdown(wait=False)
    file.close()
