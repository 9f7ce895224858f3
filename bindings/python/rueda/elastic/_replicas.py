"""Replica groups: ranks that make one contribution to a guarded step together, which counts when it is whole, or not at all.

Groups are formed when a training function begins, of the ranks that there are, and go by member from then on; a group of
which somebody is lost does not count until the function begins anew.
"""

import hashlib

from rueda._runtime import runtime
from rueda.common.process_sets import ProcessSet


class Replicas:
    """Of one guarded state. Without `use` every rank is a group.

    Attributes
    ----------
    complete : int
        Number of groups that count; 0 before a function has begun.
    left_out : bool
        Whether any rank does not count.
    ranks : int
        Number of ranks in the groups that count.
    counts : bool
        Whether this rank is in one of them.
    """

    def __init__(self):
        self._wanted, self._next = None, None  # now, and when a function begins
        self._groups = []  # lists of members
        self.complete, self.ranks, self.left_out, self.counts = 0, 0, False, True

    def use(self, wanted):
        """Groups of so many ranks each, or these process sets, from the next `begin` on.

        ValueError for anything else, or sets of other sizes.
        """
        if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
            self._next = wanted
            return
        sets = list(wanted) if isinstance(wanted, (list, tuple)) else []
        if not sets or not all(isinstance(each, ProcessSet) for each in sets):
            raise ValueError(f"replica={wanted!r}: the number of ranks in a replica group, or a list of process sets")
        ranks = [rank for each in sets for rank in each.ranks]
        if len(set(ranks)) < len(ranks) or len({len(each.ranks) for each in sets}) > 1 or not ranks:
            raise ValueError("replica=: process sets that have no rank in common, and all as many ranks")
        self._next = sets, len(sets[0].ranks)

    def begin(self):
        """A function begins: forms the groups. Collective. RuntimeError on all ranks: not one is whole, or ranks disagree."""
        epoch, self._wanted = runtime.epoch, self._next
        if self._wanted is None:
            self._require_same("")
            return
        if isinstance(self._wanted, int):
            size, members = self._wanted, epoch.members
            groups = [members[first : first + size] for first in range(0, len(members), size)]
            what = f"replica={size}"
        else:
            sets, size = self._wanted
            groups = [[epoch.members[rank] for rank in each.ranks] for each in sets if each.ranks]
            what = f"{len(sets)} process sets"
        self._require_same(f"{size} {groups}")
        self._groups = [group for group in groups if len(group) == size]
        self.follow()
        if self.complete == 0:
            raise RuntimeError(
                f"no replica group has all of its {size} ranks ({len(epoch.members)} ranks, {what}): give --min-np {size} or "
                "more, or call guard() with process sets of the ranks that there are"
            )

    def follow(self):
        """Ranks have been lost. Returns whether a step can still be made."""
        if self._wanted is None:
            return True
        epoch = runtime.epoch
        here = set(epoch.members)
        whole = [member for group in self._groups if here.issuperset(group) for member in group]
        self.complete = sum(here.issuperset(group) for group in self._groups)
        self.ranks, self.counts = len(whole), epoch.member in whole
        self.left_out = len(whole) < len(here)
        return self.complete > 0

    def would_gain(self):
        """Whether there would be more groups if a function began now; the same on all ranks."""
        return isinstance(self._wanted, int) and len(runtime.epoch.members) // self._wanted > self.complete

    def contributors(self):
        """How many contributions a step has: of groups, or of ranks where there are none."""
        return runtime.place.size if self._wanted is None else self.complete

    def _require_same(self, said):
        digest = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "big")
        name = "rueda.elastic.replica"
        if runtime.largest(name, digest) != -runtime.largest(name, -digest):
            raise RuntimeError("ranks have given guard() different replica= : it has to be the same on all")
