"""A step of one copy of the values for all ranks of a host is done as a whole, or not at all, if ranks are lost in it.

Each rank writes its share of the copy. Before it does it keeps what was there, where the others can read it: in the
memory of the reduced gradients that the update has used up, so that it costs no memory.

    batch n of a rank:    scratch <- values | values <- update | kept <- scratch         (1)      (2)      (3)
    its progress says:    n kept            | n kept, scratch  | n + 1 kept

A step is decided once, by the first who knows: *done*, if all ranks' progress says that they have updated everything; or
*undone*, by whoever fails before. In an undone step each rank puts back its own share, and those of ranks that died.

`proposal` and `undone` are the rules; tests/python/test_sharding_journal.py tries them in every order of events.
"""

import ctypes
import os
import time

import torch

from rueda import _ffi
from rueda._memory import memory_view
from rueda._numpy import np
from rueda.torch.memory import over
from rueda.torch.sharding._batch import room
from rueda.torch.sharding._host_values import address_of, has_died, place_of, room_of_all

DONE, UNDONE = 1, 2  # what a step is decided to be
_ALL = (1 << 32) - 1  # progress of a rank that has updated all batches
_MOST_SECONDS = 10.0  # for ranks that are alive to put their shares back
_exchange = _ffi.library.rueda_compare_exchange


def proposal(step, progress):
    """What a rank wants the step to be that knows of all ranks' progress."""
    return DONE if all(each == (step << 32 | _ALL) for each in progress) else UNDONE


def undone(step, progress):
    """(batches to put back, whether that behind them is in the scratch memory) of a rank with this progress."""
    if progress >> 32 != step:
        return 0, False
    counted = progress & _ALL
    return (None, False) if counted == _ALL else (counted >> 1, bool(counted & 1))


class Journal:
    """Of one rank. All of the host make it, and tell it of the same batches in the order in which they are updated."""

    def __init__(self, wire):
        self._wire, self._batches = wire, []
        self._step = self._kept = 0
        self._before = 0  # what was decided last
        self._words = room_of_all(wire, 1 + 2 * wire.size, torch.int64)  # decision, progress, who has put back
        self._pids = wire.all_of(os.getpid())
        self._scratch = []  # of each rank, as it lies here

    def watch(self, batches):
        """Of batches that are new. MemoryError on all ranks: one has no shared memory for them."""
        for batch in batches:
            kept = batch.sum if batch.frees_gradients else room(batch.layout.share, batch.dtype)
            self._batches.append((batch, self._of_all(kept)))
        most = max((_nbytes(batch.shard) for batch, _ in self._batches), default=0)
        if most and (not self._scratch or self._scratch[0].numel() < most):
            self._scratch = self._of_all(room(most, torch.uint8))

    def _of_all(self, tensor):
        """That of each rank."""
        wire = self._wire
        try:
            place = place_of(tensor.data_ptr())
        except ValueError:
            place = -1
        places, seen = wire.all_of(place), []
        if min(places) < 0:
            raise MemoryError("a rank has no shared memory for its share of the gradients (RUEDA_HEAP_BYTES)")
        for member, place in enumerate(places):
            if member == wire.rank:
                seen.append(tensor)
            else:
                view = memory_view(address_of(wire.ranks[member], place, _nbytes(tensor)), _nbytes(tensor), None)
                seen.append(over(np.frombuffer(view, np.uint8), (tensor.numel(),), (1,), tensor.dtype))
        return seen

    def _scratch_of(self, member, batch):
        return self._scratch[member][: _nbytes(batch.shard)].view(batch.dtype)

    # ---- words that all ranks see ----

    def _progress(self):
        return self._words[1 : 1 + self._wire.size].tolist()

    def _say(self, counted):
        self._words[1 + self._wire.rank] = self._step << 32 | counted

    def _decide(self, wanted):
        """What the step is, for all ranks and for good."""
        word = ctypes.cast(self._words.data_ptr(), ctypes.POINTER(ctypes.c_uint64))
        found = _exchange(word, self._before, self._step << 2 | wanted)
        self._before = self._step << 2 | wanted if found == self._before else found
        return self._before & 3

    # ---- a step ----

    def begin(self):
        self._step += 1
        self._kept = 0
        self._say(0)

    def before_next(self):
        """The values of the next batch are going to change."""
        batch, _ = self._batches[self._kept]
        self._scratch_of(self._wire.rank, batch).copy_(batch.shard.detach())
        self._say(self._kept << 1 | 1)

    def after_next(self):
        """They have, and its gradients are used up."""
        batch, kept = self._batches[self._kept]
        own = kept[self._wire.rank]
        own.copy_(self._scratch_of(self._wire.rank, batch))
        if own is batch.sum:
            batch.shard.grad = None
        self._kept += 1
        self._say(self._kept << 1)

    def all_updated(self):
        self._say(_ALL)

    def end(self):
        """All ranks have come to the end. RuntimeError: one has given the step up."""
        if self._decide(DONE) != DONE:
            self._put_back(True)
            raise RuntimeError("another rank has given up this step; the parameters are those of before")

    def give_up(self, is_lost):
        """This rank has failed in the step; ``is_lost``: because of another one."""
        if self._decide(proposal(self._step, self._progress())) == UNDONE:
            self._put_back(is_lost)

    def _put_back(self, is_lost):
        """This rank's share, and, when the others have put theirs back or have died, the shares of these."""
        wire, left = self._wire, self._words[1 + self._wire.size :]
        self._undo(wire.rank)
        left[wire.rank] = self._step
        end = time.monotonic() + _MOST_SECONDS
        others = [member for member in range(wire.size) if member != wire.rank]
        while is_lost and others:
            for member in others[:]:
                died = has_died(self._pids[member]) or time.monotonic() > end  # before the look at what it did
                if left[member] == self._step:
                    others.remove(member)
                elif died:
                    self._undo(member)
                    others.remove(member)
            time.sleep(0.001 if others else 0)

    def _undo(self, member):
        count, has_scratch = undone(self._step, self._progress()[member])
        with torch.no_grad():
            for batch, kept in self._batches[:count]:
                _share_of(member, batch).copy_(kept[member])
            if has_scratch:
                batch, _ = self._batches[count]
                _share_of(member, batch).copy_(self._scratch_of(member, batch))


def _share_of(member, batch):
    share = batch.layout.share
    return batch.values[member * share : (member + 1) * share]


def _nbytes(tensor):
    return tensor.numel() * tensor.element_size()
