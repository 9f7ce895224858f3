"""The ranks that save and load together, and how they tell each other what they found."""

import json
import threading

from rueda._numpy import np
from rueda._runtime import runtime
from rueda.common import basics

_ROW = 1024  # bytes of what a rank says
_MOST_TEXT = 400  # bytes of an error in it, where each letter that is not of ASCII takes six or twelve


class Ranks:
    """Those of the job; this one alone where there is none."""

    def __init__(self):
        self._context = runtime._context
        self.rank, self.size = (0, 1) if self._context is None else (basics.rank(), basics.size())

    def have_changed(self):
        """Whether the job goes on with others; any thread."""
        now = runtime._context
        return now is not None and now is not self._context

    def have_ended(self):
        """Whether this one has left the job, by ``shutdown()`` or as its process ends; any thread."""
        return not threading.main_thread().is_alive() or (runtime._context is None and self._context is not None)

    def gather(self, record):
        """Every rank's record, in their order."""
        if self.size == 1:
            return [record]
        from rueda._array_collectives import allgather  # which needs NumPy

        row = json.dumps(record).encode()
        rows = allgather(np.frombuffer(row.ljust(_ROW), np.uint8).reshape(1, _ROW), "rueda.checkpoint")
        return [json.loads(each.tobytes()) for each in rows]


class Alone(Ranks):
    """This one, whoever else there is."""

    def __init__(self):
        super().__init__()
        self.rank, self.size = 0, 1


def short(text):
    """So much of a text as a rank can tell the others: its beginning and its end."""
    kept, result = len(text), text
    while len(json.dumps(result)) > _MOST_TEXT:
        kept -= max(2, kept // 16)
        result = f"{text[: kept // 2]} ... {text[-(kept // 2) :]}"
    return result


def agree(ranks, what, action):
    """What ``action()`` gives on each rank. An error on one is one on all of them, each of which says what it was."""
    value = failure = None
    try:
        value = action()
    except Exception as error:
        failure = error
    told = None if failure is None else short(f"{type(failure).__name__}: {failure}")
    records = ranks.gather({"error": told, "value": value})
    if failure is not None:
        raise failure
    for rank, record in enumerate(records):
        if record["error"] is not None:
            raise RuntimeError(f"{what}: rank {rank} failed: {record['error']}")
    return [record["value"] for record in records]
