"""How long this process's steps have waited for data; the one place where that is counted."""

import contextlib
import threading
import time

from rueda import _marks

_lock = threading.Lock()
_seconds = {"batches": 0.0, "index": 0.0}


@contextlib.contextmanager
def counted(what):
    """The time that the block takes is waited: for the next of ``"batches"``, or for an ``"index"``; in the timeline, too."""
    begun = time.monotonic()
    _marks.begin_data()
    try:
        yield
    finally:
        _marks.end_data()
        with _lock:
            _seconds[what] += time.monotonic() - begun


def wait_seconds():
    """Seconds for which loops over a `DataLoader` of this process have waited for their next batch, since it began.

    It grows by next to nothing where batches are read ahead in time; a rank on which it grows faster than on
    others is slow because of its data. Any thread may ask.
    """
    return _seconds["batches"]


def index_seconds():
    """Seconds that this process has spent on listing files and on reading what is in them, since it began.

    Most of it is waiting for rank 0, which lists directories for all. Any thread may ask.
    """
    return _seconds["index"]
