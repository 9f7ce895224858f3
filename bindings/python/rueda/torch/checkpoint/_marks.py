"""How the first rank learns of the others' files: each leaves a mark in the folder, NAME, bytes and hash, or why it failed.

A mark need not outlive the system: what is on disk counts from the manifest on.
"""

import json
import os
import time

_WRITTEN, _FAILED = "{:05d}.written", "{:05d}.failed"
_LOOK_SECONDS = 0.002, 0.1  # between two looks for marks: first, and at most
_AFTER_END = 30.0  # seconds that one which has left the job waits for other ranks' marks


def written(folder, rank, entry):
    _leave(folder, _WRITTEN.format(rank), entry)


def failed(folder, rank, error, own):
    """``own``: the name of this rank's file, which takes the mark's name where no other can be written."""
    try:
        _leave(folder, _FAILED.format(rank), f"{type(error).__name__}: {error}")
    except OSError:  # a full disk has room for another name still
        os.replace(os.path.join(folder, own), os.path.join(folder, _FAILED.format(rank)))


def _leave(folder, name, said):
    path = os.path.join(folder, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(said, file)
    os.replace(path + ".new", path)


def others(folder, ranks, timeout):
    """What the ranks but the first say of their files, when all have; an error when one failed, or none can be hoped for."""
    missing, found, pause = set(range(1, ranks.size)), {}, _LOOK_SECONDS[0]
    hope = _Hope(ranks, timeout)
    while missing:
        names = set(os.listdir(folder))
        for rank in sorted(missing):
            if _FAILED.format(rank) in names:
                raise RuntimeError(f"rank {rank} failed: {_why(folder, rank)}")
            if _WRITTEN.format(rank) in names:
                found[rank] = _said(folder, _WRITTEN.format(rank))
        missing -= set(found)
        if missing:
            hope.require(missing)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS[1])
    return [found[rank] for rank in sorted(found)]


class _Hope:
    """That the others' marks will come."""

    def __init__(self, ranks, timeout):
        self._ranks, self._timeout, self._is_ending = ranks, timeout, False
        self._end = time.monotonic() + timeout

    def require(self, missing):
        now, names = time.monotonic(), ", ".join(map(str, sorted(missing)))
        if self._ranks.have_changed():
            raise RuntimeError(f"the job's ranks have changed, and ranks {names} had not written their parts")
        if not self._is_ending and self._ranks.have_ended():
            self._is_ending, self._end = True, min(self._end, now + _AFTER_END)
        if now >= self._end:
            raise TimeoutError(f"ranks {names} have not written their parts within {self._timeout:g} s (timeout=)")


def _why(folder, rank):
    try:
        return _said(folder, _FAILED.format(rank))
    except (OSError, ValueError):
        return "it could not even write why"


def _said(folder, name):
    path = os.path.join(folder, name)
    with open(path, encoding="utf-8") as file:
        said = json.load(file)
    os.unlink(path)
    return said
