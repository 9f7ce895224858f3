"""System calls that fail while ranks save: FOLDER SIZE. Each call of each rank fails once; a whole checkpoint always loads.

Of three saves the second meets the fault, in one rank. Ranks are forked, as in checkpoint_kills.py, for each fault anew.
"""

import builtins
import errno
import fcntl
import json
import os
import signal
import sys
import warnings

import torch
from checkpoint_kills import Forked, connected, state
from rueda.torch import checkpoint
from rueda.torch.checkpoint import _saving

CALLS = "open pwrite fsync close rename replace mkdir unlink rmdir listdir scandir stat fstat ftruncate pread".split()
MOST_SECONDS = 60  # of one fault's ranks


class Faults:
    """One system call on a folder's files fails: the n-th. None: they are counted."""

    def __init__(self, n, code):
        self.n, self.code, self.count, self._originals = n, code, 0, {}

    def __enter__(self):
        places = [(os, name) for name in CALLS] + [(builtins, "open"), (fcntl, "lockf")]
        for module, name in places:
            self._originals[module, name] = original = getattr(module, name)
            setattr(module, name, self._failing(name, original))
        return self

    def __exit__(self, *_):
        for (module, name), original in self._originals.items():
            setattr(module, name, original)

    def meet(self, name):
        self.count += 1
        if self.count == self.n:
            raise OSError(self.code, f"planted in {name}")

    def _failing(self, name, original):
        def call(*arguments, **keywords):
            if name == "close":
                original(*arguments)
            self.meet(name)
            result = None if name == "close" else original(*arguments, **keywords)
            return _File(result, self) if original is builtins_open else result

        return call


builtins_open = open


class _File:
    """One that Python's own ``open`` has opened."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._file.close()
        if kind is None:
            self._faults.meet("close")

    def read(self, *arguments):
        self._faults.meet("read")
        return self._file.read(*arguments)

    def write(self, text):
        self._faults.meet("write")
        return self._file.write(text)


def attempt(folder, step):
    try:
        checkpoint.save(folder, state(step), step=step, wait=True, timeout=10)
        return None
    except (OSError, RuntimeError) as error:
        return str(error)


def found(folder):
    loaded = state(-1)
    step = checkpoint.resume(folder, loaded)
    assert loaded["step"] == step and loaded["a"].eq(step).all() and loaded["b"].eq(step).all()
    return step


def three_saves(ranks, folder, first, fault):
    """What this rank was told, and found after each save; how many calls the second made."""
    _saving.Ranks = checkpoint._loading.Ranks = lambda: ranks
    before = attempt(folder, first)
    with fault:
        told = attempt(folder, first + 1)
    return [before, told, found(folder), attempt(folder, first + 2), found(folder), fault.count]


def job(folder, size, first, victim, n, code):
    """Of each rank, what `three_saves` says."""
    pairs, (reader, writer), children = connected(size), os.pipe(), []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(MOST_SECONDS)
                warnings.simplefilter("error")  # nothing under a checkpoint's name is damaged
                ranks = Forked.of(rank, size, pairs)
                said = three_saves(ranks, folder, first, Faults(n if rank == victim else None, code))
                os.write(writer, (json.dumps([rank, *said]) + "\n").encode())
            finally:
                os._exit(0)
        children.append(child)
    os.close(writer)
    for each in {s for pair in pairs for s in pair}:
        each.close()
    for child in children:
        os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        return [row for _, *row in sorted(json.loads(line) for line in lines)]


def main(folder, size):
    first = faults = 0
    torch.set_num_threads(1)
    for code in (errno.EIO, errno.ENOSPC):
        for victim in range(size):
            calls, n, seen = job(folder, size, first, victim, None, code)[victim][-1], 0, 0
            assert calls > 10, calls
            while n < calls + 5:  # a save after one that failed makes a few more
                first, n = first + 3, n + 1
                rows = job(folder, size, first, victim, n, code)
                check(rows, size, first, (errno.errorcode[code], victim, n))
                seen += rows[victim][1] is not None
            first += 3
            faults += n
            assert seen > calls // 2, (seen, calls)
            left = os.listdir(folder)
            assert len(left) == 3 and "lock" in left, left  # two, and nothing of those that failed
    print(f"{faults} faults")


def check(rows, size, first, what):
    assert len(rows) == size, (what, rows)
    for before, told, found_then, after, found_last, _ in rows:
        assert before is None and after is None and found_last == first + 2, (what, rows)
        assert (told is None) == (rows[0][1] is None), (what, rows)
        assert found_then in ((first + 1,) if told is None else (first, first + 1)), (what, rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
