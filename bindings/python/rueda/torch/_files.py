"""Files that are read and written at places, and files that are replaced as a whole."""

import contextlib
import os

_MOST_AT_ONCE = 1 << 30  # bytes that one system call moves


def write_all(file, data, at):
    """All bytes of a buffer; a system call writes as many as it likes."""
    while len(data):
        count = os.pwrite(file, data[:_MOST_AT_ONCE], at)
        data, at = data[count:], at + count


def read_all(file, data, at):
    """Fills a buffer; False: the file ends before."""
    while len(data):
        count = os.preadv(file, [data[:_MOST_AT_ONCE]], at)
        if count == 0:
            return False
        data, at = data[count:], at + count
    return True


@contextlib.contextmanager
def replaced(path):
    """Where to write what becomes ``path`` in the end: whoever looks sees the old file or the new one, and no part of it."""
    new = path + ".new"
    _remove(new)  # of one that was killed
    try:
        yield new
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise


def _remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
