"""Where each rank's own state is mirrored, and who gets what after the ranks have changed. Nothing here talks to anybody."""

import collections

Facts = collections.namedtuple(
    "Facts", "version staged members members_staged held held_staged orphans orphans_staged host"
)
Facts.__doc__ = """What a rank tells of its copies in a new epoch.

version : number of the newest copies of which it knows that all were whole; 0: it has none
staged : number of those that it had made after that, or 0
members, members_staged : of the epoch in which each was made
held, held_staged : {member whose mirror it is: members whose parts are in that copy}
orphans, orphans_staged : members whose parts it has itself
host : where it runs
"""

Move = collections.namedtuple("Move", "member source owner target")
Move.__doc__ = """A part of a lost ``member``: rank ``source`` has it, in the copy of ``owner`` (None: among its orphans), ``target`` gets it."""


def mirrors(hosts):
    """Of each rank, the one that mirrors it; -1 where there is no other.

    On another host, if there is one; then as evenly as that allows.
    """
    size = len(hosts)
    if size == 1:
        return [-1]
    groups = collections.defaultdict(list)
    for rank, host in enumerate(hosts):
        groups[host].append(rank)
    groups = list(groups.values())
    largest = max(groups, key=len)
    step = len(largest) if 2 * len(largest) <= size else 1
    order = [rank for group in groups for rank in group]
    if step > 1 or len(groups) in (1, size):  # along the row of hosts, past one's own; or simply the next
        result = dict(zip(order, order[step:] + order[:step]))
    else:  # one host has most of the ranks
        others = [rank for group in groups if group is not largest for rank in group]
        result = {rank: others[i % len(others)] for i, rank in enumerate(largest)}
        result.update(zip(others, largest))
    return [result[rank] for rank in range(size)]


def newest(facts):
    """The number of the copies that count. Who has made them and does not know that all have, learns it here."""
    return max(each.version for each in facts)


def _of(fact, number):
    """What a rank has of the copies of that number: (members of the epoch, held, orphans), or None."""
    if fact.version == number:
        return fact.members, fact.held, fact.orphans
    return (fact.members_staged, fact.held_staged, fact.orphans_staged) if fact.staged == number else None


def settle(facts, members):
    """[`Move`] of what newcomers get, and [(rank, owner)] of the copies whose other parts become the rank's orphans.

    Parameters
    ----------
    facts : list of Facts
        By rank.
    members : list of int
        The epoch's, by rank.

    Raises
    ------
    RuntimeError
        Somebody was lost together with the mirror. All ranks come to the same.
    """
    number = newest(facts)
    if number == 0:
        return [], []
    copies = {rank: _of(fact, number) for rank, fact in enumerate(facts) if _of(fact, number) is not None}
    before, *_ = next(iter(copies.values()))
    lost = sorted(set(before).difference(members))
    holders = {owner: rank for rank, (_, held, _) in copies.items() for owner in held}
    gone = [member for member in lost if member not in holders]
    if gone:
        raise RuntimeError(
            f"the local= state of {len(gone)} lost ranks is lost, because the ranks that mirrored it were lost at the same time "
            f"(members {', '.join(map(str, gone[:6]))}): start the job again, from a checkpoint if it makes some"
        )
    pool = {}  # member: (rank, owner)
    for rank, (_, _, orphans) in copies.items():
        pool.update((member, (rank, None)) for member in orphans)
    for owner in lost:
        _, held, _ = copies[holders[owner]]
        for member in held[owner]:
            pool.setdefault(member, (holders[owner], owner))
    newcomers = [rank for rank in range(len(facts)) if rank not in copies]
    moves = [Move(member, *pool[member], rank) for rank, member in zip(newcomers, sorted(pool))]
    return moves, [(holders[owner], owner) for owner in lost]
