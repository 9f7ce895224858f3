"""Each rank's own state, in memory of another rank too, so that it outlives its rank.

    save: pack ──> exchange: each sends what has changed to its mirror ──> vote ──> these copies count

Until the vote has come back on some rank, the copies before count, and everybody has them still. When it has, everybody has
the new ones whole, and who does not know it yet learns it in the next epoch, from the numbers (`settle`).
"""

import collections
import os
import socket

from rueda._numpy import np
from rueda._objects import allgather_object
from rueda._runtime import runtime
from rueda.elastic._mirror_exchange import exchange, package
from rueda.elastic._mirror_plan import Facts, mirrors, newest, settle

Part = collections.namedtuple("Part", "member rank array")
Part.__doc__ = "The state of one member, who had this rank: bytes."

Settled = collections.namedtuple("Settled", "is_newer part orphans given")
Settled.__doc__ = """What a new epoch brings: whether the rank's own copy is another one; a `Part` for a newcomer, or None; `Part`s that
have become this rank's; members whose parts it has not any more."""


class _Copy:
    """All that a rank has of one save."""

    def __init__(self, number, array, orphans=(), members=()):
        self.number, self.array, self.orphans, self.members = number, array, list(orphans), list(members)
        self.mirror, self.digests = None, ()  # the member that has them, too, and what it has
        self.held = {}  # member: (array, table)

    def held_parts(self, owner):
        array, table = self.held[owner]
        ends = np.cumsum(table[:, 2])
        return [Part(int(m), int(r), array[e - n : e]) for (m, r, n), e in zip(table, ends)]


class Mirror:
    """Of one state. Threads: the one that trains. Collective but for `keep`.

    Parameters
    ----------
    array : numpy.ndarray
        The rank's own state to begin with, as uint8.
    """

    def __init__(self, array):
        self._copy = _Copy(0, array)
        self._staged = None
        self._epoch = None  # the number of the one that is settled
        self._number = 0  # of the newest copies
        self._mirrors = []

    @property
    def saved(self):
        """(array, orphans), as saved last."""
        return self._copy.array, self._copy.orphans

    def keep(self, array, orphans):
        """A save without a mirror, of a rank that is with nobody, or not yet."""
        self._copy.array, self._copy.orphans = array, list(orphans)

    def settle(self, orphans):
        """In a new epoch: `Settled`, or None if that has been done. ``orphans``: those `Part`s that this rank has now."""
        epoch = runtime.epoch
        if self._epoch == epoch.number:
            return None
        facts = allgather_object(self._facts(orphans))
        moves, adopted = settle(facts, epoch.members)
        self._number = newest(facts)
        is_newer = self._staged is not None and self._copy.number < self._number
        if is_newer:
            self._copy = self._staged
            orphans = self._copy.orphans
        self._staged = None
        me = epoch.members.index(epoch.member)
        part = self._move(moves, me, orphans)
        moved = {move.member for move in moves}
        mine = [each for rank, owner in adopted if rank == me for each in self._copy.held_parts(owner)]
        self._mirrors = mirrors([fact.host for fact in facts])
        self._epoch = epoch.number
        return Settled(is_newer, part, [each for each in mine if each.member not in moved], moved)

    def save(self, array, orphans):
        """These are the copies that count, here and on the mirror, when it comes back."""
        epoch = runtime.epoch
        me = epoch.members.index(epoch.member)
        staged = _Copy(self._number + 1, array, orphans, epoch.members)
        if len(epoch.members) > 1:
            self._staged = None
            self._send(staged, me, epoch.members)
            self._staged = staged
            runtime.commit_vote()
        self._copy, self._staged, self._number = staged, None, staged.number

    def _facts(self, orphans):
        copy, staged = self._copy, self._staged
        return Facts(
            copy.number,
            staged.number if staged else 0,
            copy.members,
            staged.members if staged else [],
            _parts_held(copy),
            _parts_held(staged) if staged else {},
            [part.member for part in orphans],
            [part.member for part in staged.orphans] if staged else [],
            (os.environ.get("HOROVOD_HOSTNAME"), socket.gethostname()),
        )

    def _send(self, staged, me, members):
        parts = [Part(members[me], me, staged.array), *staged.orphans]
        array = staged.array if len(parts) == 1 else np.concatenate([part.array for part in parts])
        mirror = self._mirrors[me]
        staged.mirror = members[mirror]
        packed = package(array, _table(parts), self._copy.digests if self._copy.mirror == staged.mirror else ())
        staged.digests = packed.digests
        sources = [rank for rank, each in enumerate(self._mirrors) if each == me]
        bases = [self._copy.held.get(members[rank], (None,))[0] for rank in sources]
        came = exchange([(mirror, packed)], list(zip(sources, bases)))
        staged.held = dict(zip((members[rank] for rank in sources), came))

    def _move(self, moves, me, orphans):
        """Hands parts over to newcomers. Returns what this rank gets, if it is one that gets something."""
        sends = []
        for move in moves:
            if move.source == me:
                parts = orphans if move.owner is None else self._copy.held_parts(move.owner)
                (part,) = [each for each in parts if each.member == move.member]
                sends.append((move.target, package(part.array, _table([part]))))
        came = exchange(sends, [(move.source, None) for move in moves if move.target == me])
        return next((Part(int(table[0][0]), int(table[0][1]), array) for array, table in came), None)


def _table(parts):
    return np.array([(part.member, part.rank, part.array.size) for part in parts], np.int64)


def _parts_held(copy):
    return {owner: [part.member for part in copy.held_parts(owner)] for owner in copy.held}
