"""Memory that is used again and again: steady steps allocate nothing."""

import torch

from rueda.torch.sharding._batch import room

KEPT = 2  # buffers of a pool that needs no more


class Buffer:
    """Some bytes. ``holder``: whose numbers it has; ``used``: when it was given away last."""

    __slots__ = ("address", "holder", "memory", "used")

    def __init__(self, nbytes):
        self.memory, self.holder, self.used = room(nbytes, torch.uint8, zeroed=False), None, 0
        self.address = self.memory.data_ptr()

    def part(self, at, count, dtype):
        """``count`` elements from a byte on."""
        nbytes = count * torch.empty(0, dtype=dtype).element_size()
        return self.memory[at : at + nbytes].view(dtype)


class Pool:
    """Of buffers that come back when ``reclaim()``, which says whether one did, has waited for their last use.

    ``most``: bytes of the largest that is asked for.
    """

    def __init__(self, most, reclaim):
        self._most, self._reclaim, self._free, self.buffers = most, reclaim, [], []

    def take(self):
        while not self._free:
            if len(self.buffers) < KEPT or not self._reclaim():
                self.buffers.append(Buffer(self._most))
                return self.buffers[-1]
        return self._free.pop()

    def give_back(self, buffer):
        self._free.append(buffer)


class Places:
    """Where units are gathered. A unit keeps its place, because what autograd has saved looks there.

    There are two, and more where more are needed at a time; units during which others are gathered have one alone.
    """

    def __init__(self, most):
        self._most, self.buffers, self._clock = most, [], 0

    def of(self, unit):
        """The unit's place, which no unit uses that is gathered; maybe another than before."""
        place = unit.place
        if place is None or (place.holder is not None and place.holder is not unit and place.holder.is_busy):
            place = unit.place = self._find(unit)
            unit.forget_views()
        self._clock += 1
        place.used = self._clock
        return place

    def _find(self, unit):
        if unit.is_alone:
            return Buffer(unit.nbytes)
        idle = [place for place in self.buffers if place.holder is None or not place.holder.is_busy]
        if len(self.buffers) < KEPT or not idle:
            self.buffers.append(Buffer(self._most))
            return self.buffers[-1]
        return min(idle, key=lambda place: place.used)


class Second:
    """Holds a place that a unit had when autograd saved parts of it, and has left, until that backward is done."""

    def __init__(self, unit):
        self.unit, self.name = unit, unit.name

    @property
    def is_busy(self):
        return self.unit.live is not None

    def drop(self):
        pass
