"""Kills ranks that save checkpoints, at random: FOLDER KILLS SEED RANKS. What was told to be whole, or a newer one, loads.

Ranks are forked, since starting Python takes a thousand times as long as a save; they agree through a socket.
"""

import json
import os
import random
import signal
import socket
import sys
import time
import warnings

import torch
from rueda.torch import checkpoint
from rueda.torch.checkpoint import _ranks, _saving

COUNT = 100_000  # elements


class Forked(_ranks.Ranks):
    def __init__(self, rank, size, sockets):
        super().__init__()
        self.rank, self.size, self._files = rank, size, [s.makefile("rw") for s in sockets]

    @classmethod
    def of(cls, rank, size, pairs):
        """One of those that ``pairs`` connect, in its process: keeps its own sockets."""
        mine = [a for a, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
        for each in {s for pair in pairs for s in pair} - set(mine):
            each.close()
        return cls(rank, size, mine)

    def gather(self, record):
        if self.rank == 0:
            records = [record, *(json.loads(file.readline()) for file in self._files)]
            for file in self._files:
                self._say(file, records)
            return records
        self._say(self._files[0], record)
        return json.loads(self._files[0].readline())

    @staticmethod
    def _say(file, what):
        file.write(json.dumps(what) + "\n")
        file.flush()


def state(step):
    return {"a": torch.full((COUNT,), step), "b": torch.full((7,), float(step)), "step": step}


def save_for_ever(ranks, folder, told, first):
    _saving.Ranks = lambda: ranks
    for step in range(first, sys.maxsize):
        checkpoint.save(folder, state(step), step=step, wait=step % 3 == 0, timeout=20)
        if ranks.rank == 0 and step % 3 == 0:
            os.write(told, b"%d\n" % step)


def connected(size):
    """Of the first rank and each other, their sockets."""
    return [socket.socketpair() for _ in range(size - 1)]


def start(folder, size, first):
    """Processes of all ranks, and where the first says what is whole."""
    pairs = connected(size)
    reader, writer = os.pipe()
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(Forked.of(rank, size, pairs), folder, writer, first)
            finally:
                os._exit(1)
        children.append(child)
    for pair in pairs:
        for each in pair:
            each.close()
    os.close(writer)
    return children, reader


def main(folder, kills, seed, size):
    chance, last = random.Random(seed), 0
    torch.set_num_threads(1)
    for _ in range(kills):
        children, reader = start(folder, size, last + 1)
        told = os.read(reader, 1 << 16)  # not before something is whole
        if not told:
            sys.exit("a rank failed by itself")
        time.sleep(chance.random() * 0.03)
        chance.shuffle(children)
        for child in children:  # one after another: the others see that it is gone
            os.kill(child, signal.SIGKILL)
            time.sleep(chance.random() * 0.003)
        for child in children:
            os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as rest:
            whole = int((told + rest.read()).split()[-1])
        loaded = state(-1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing that is there under a checkpoint's name is damaged
            step = checkpoint.resume(folder, loaded)
        assert step >= whole > last, (step, whole, last)
        assert loaded["step"] == step and loaded["a"].eq(step).all() and loaded["b"].eq(step).all()
        last = step
    print(f"{kills} kills, {last} steps")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
