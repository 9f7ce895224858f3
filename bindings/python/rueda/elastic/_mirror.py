"""Each rank's own state, in memory of another rank too, so that it outlives its rank.

    save: pack ──> exchange: each sends what has changed to its mirror ──> vote ──> these copies count

Until the vote has come back on some rank, the copies before count, and everybody has them still. When it has, everybody has
the new ones whole; but who does not know that yet has the model of the commit before. So a new epoch only chooses, by what is
known to ranks that have the newest commit (`settle`), and both copies are kept until a later save has come back here.
"""

import collections
import os
import socket

from rueda._numpy import np
from rueda._objects import allgather_object
from rueda._runtime import runtime
from rueda.elastic._mirror_exchange import exchange, package
from rueda.elastic._mirror_plan import Facts, Kept, counting, mirrors, settle
from rueda.elastic._points import RESTORE

Part = collections.namedtuple("Part", "member rank array")
Part.__doc__ = "The state of one member, who had this rank: bytes."

Settled = collections.namedtuple("Settled", "part orphans")
Settled.__doc__ = """What a new epoch brings: a `Part` that the rank's own state is from now on, or None if it stays; all `Part`s that it has of others."""


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
        self._own = _Copy(0, array)  # the last that came back here
        self._later = []  # copies that others may know to be whole
        self._number = 0  # of the save that counts in this epoch
        self._having = frozenset()  # ranks that have something of it
        self._has_inherited = False  # its state is a part that came from elsewhere, and is not saved yet
        self._epoch = None  # the number of the one that is settled
        self._mirrors = []

    @property
    def saved(self):
        """(array, orphans), as of the last save that came back here."""
        return self._own.array, self._own.orphans

    @property
    def holders(self):
        """Members that have what was saved, too; this one itself, if nobody else has."""
        me = runtime.epoch.member
        copies = [copy for copy in (self._own, *self._later) if copy.number]
        return sorted({me if copy.mirror is None else copy.mirror for copy in copies})

    @property
    def is_whole(self):
        """Whether ranks of this epoch have all copies: they have saved in it, or one rank is alone."""
        members = list(runtime.epoch.members)
        return len(members) == 1 or list(self._own.members) == members

    def keep(self, array, orphans):
        """A save without a mirror, of a rank that is with nobody, or not yet."""
        self._own.array, self._own.orphans = array, list(orphans)

    def settle(self, orphans):
        """In a new epoch: `Settled`, or None if that has been done. ``orphans``: those `Part`s that this rank has now."""
        epoch = runtime.epoch
        if self._epoch == epoch.number:
            return None
        me = epoch.members.index(epoch.member)
        facts = allgather_object(self._facts(orphans))
        number = counting(facts, epoch.has_target)
        moves, adopted = settle(facts, epoch.members, number, epoch.branch != RESTORE)
        if self._own.number > number:  # it counts nowhere any more
            self._own = _Copy(0, *self.saved)
        copy = self._choose(number)
        is_other = copy is not None and copy is not self._own
        part = Part(epoch.member, me, (copy if is_other else self._own).array) if is_other or self._has_inherited else None
        if copy is not self._own:
            orphans = copy.orphans if is_other else []
        came = self._move(copy, moves, me, orphans)
        mine = [each for rank, owner in adopted if rank == me for each in copy.held_parts(owner)]
        known, given = {each.member for each in orphans}, {move.member for move in moves}
        orphans = [each for each in (*orphans, *(new for new in mine if new.member not in known)) if each.member not in given]
        self._has_inherited = came is not None
        self._having = {rank for rank, fact in enumerate(facts) if number in fact.copies}
        self._mirrors = mirrors([fact.host for fact in facts])
        self._epoch, self._number = epoch.number, number
        return Settled(came or part, orphans)

    def save(self, array, orphans):
        """These are the copies that count, here and on the mirror, when it comes back."""
        epoch = runtime.epoch
        me = epoch.members.index(epoch.member)
        staged = _Copy(self._number + 1, array, orphans, epoch.members)
        if len(epoch.members) > 1:
            base = self._choose(self._number)
            self._send(staged, base or _Copy(0, None), me, epoch.members)
            self._later.append(staged)
            runtime.commit_vote()
        self._own, self._later, self._number = staged, [], staged.number
        self._having, self._has_inherited = set(range(len(epoch.members))), False

    def _choose(self, number):
        """The copy of that number, or None. Those after it count nowhere any more."""
        self._later = [copy for copy in self._later if copy.number <= number]
        return next((copy for copy in (self._own, *self._later) if copy.number == number), None)

    def _facts(self, orphans):
        copies = {copy.number: _kept(copy, copy.orphans) for copy in self._later}
        copies[self._own.number] = _kept(self._own, orphans)
        return Facts(self._own.number, copies, (os.environ.get("HOROVOD_HOSTNAME"), socket.gethostname()))

    def _send(self, staged, base, me, members):
        parts = [Part(members[me], me, staged.array), *staged.orphans]
        array = staged.array if len(parts) == 1 else np.concatenate([part.array for part in parts])
        mirror = self._mirrors[me]
        staged.mirror = members[mirror]
        has_base = base.mirror == staged.mirror and mirror in self._having
        packed = package(array, _table(parts), base.digests if has_base else ())
        staged.digests = packed.digests
        sources = [rank for rank, each in enumerate(self._mirrors) if each == me]
        bases = [base.held.get(members[rank], (None,))[0] for rank in sources]
        came = exchange([(mirror, packed)], list(zip(sources, bases)))
        staged.held = dict(zip((members[rank] for rank in sources), came))

    def _move(self, copy, moves, me, orphans):
        """Hands parts over to those that have nothing. Returns what this rank gets, if it is one that gets something."""
        sends = []
        for move in moves:
            if move.source == me:
                parts = orphans if move.owner is None else copy.held_parts(move.owner)
                (part,) = [each for each in parts if each.member == move.member]
                sends.append((move.target, package(part.array, _table([part]))))
        came = exchange(sends, [(move.source, None) for move in moves if move.target == me])
        return next((Part(int(table[0][0]), int(table[0][1]), array) for array, table in came), None)


def _table(parts):
    return np.array([(part.member, part.rank, part.array.size) for part in parts], np.int64)


def _kept(copy, orphans):
    held = {owner: [part.member for part in copy.held_parts(owner)] for owner in copy.held}
    return Kept(copy.members, held, [part.member for part in orphans])
