"""Where each rank's own state is mirrored, and who gets what after the ranks have changed. Nothing here talks to anybody."""

import collections

Facts = collections.namedtuple("Facts", "version copies host")
Facts.__doc__ = """What a rank tells of its copies in a new epoch.

version : number of the last save that came back on this rank, which its model is of, too; 0: none
copies : {number: `Kept`} of all that it has
host : where it runs
"""

Kept = collections.namedtuple("Kept", "members held orphans")
Kept.__doc__ = """What a rank has of one save.

members : of the epoch in which it was made
held : {member whose mirror it is: members whose parts are in that copy}
orphans : members whose parts it has itself
"""

Move = collections.namedtuple("Move", "member source owner target")
Move.__doc__ = """A part of a lost ``member``: rank ``source`` has it, in the copy of ``owner`` (None: among its orphans), ``target`` gets it."""


def mirrors(hosts):
    """Of each rank, the one that mirrors it; -1 where there is no other.

    On another host, if there is one; then as evenly as that allows. Where all hosts have as many ranks, the first of one
    is mirrored by the last of the next: hosts that get fewer slots lose their last ranks together.
    """
    size = len(hosts)
    if size == 1:
        return [-1]
    groups = collections.defaultdict(list)
    for rank, host in enumerate(hosts):
        groups[host].append(rank)
    groups = list(groups.values())
    if len(groups) > 1 and len({len(group) for group in groups}) == 1:
        result = {}
        for group, following in zip(groups, groups[1:] + groups[:1]):
            result.update(zip(group, reversed(following)))
        return [result[rank] for rank in range(size)]
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


def counting(facts, has_target):
    """The number of the save that counts; 0: none.

    The largest that came back on a rank with the newest commit. Who has made it and does not know that all have, learns it
    here. One that came back only on ranks that are gone, and whose commit they took along, does not count.
    """
    return max((fact.version for fact, holds in zip(facts, has_target) if holds), default=0)


def settle(facts, members, number, have_left=False):
    """[`Move`] of what ranks get that have nothing, and [(rank, owner)] of the copies whose other parts become the rank's orphans.

    Parameters
    ----------
    facts : list of Facts
        By rank.
    members : list of int
        The epoch's, by rank.
    number : int
        Of the save that counts.
    have_left : bool
        Whether those that are gone have left in order; for the message.

    Raises
    ------
    RuntimeError
        Somebody is gone together with the mirror. All ranks come to the same.
    """
    copies = {rank: fact.copies[number] for rank, fact in enumerate(facts) if number in fact.copies}
    if number == 0 or not copies:
        return [], []
    before = next(iter(copies.values())).members
    # One that is here and has nothing of this save is served as one that is lost.
    lost = sorted(set(before).difference(members[rank] for rank in copies))
    holders = {owner: rank for rank, kept in copies.items() for owner in kept.held}
    gone = [member for member in lost if member not in holders]
    if gone:
        raise RuntimeError(_is_gone(gone, have_left))
    pool = {}  # member: (rank, owner)
    for rank, kept in copies.items():
        pool.update((member, (rank, None)) for member in kept.orphans)
    for owner in lost:
        for member in copies[holders[owner]].held[owner]:
            pool.setdefault(member, (holders[owner], owner))
    without = [rank for rank in range(len(facts)) if rank not in copies]
    own = {members[rank]: rank for rank in without if members[rank] in pool}
    newcomers = [rank for rank in without if members[rank] not in own]
    targets = {**own, **dict(zip(sorted(set(pool).difference(own)), newcomers))}
    return [Move(member, *pool[member], targets[member]) for member in sorted(targets)], [(holders[owner], owner) for owner in lost]


def _is_gone(members, have_left):
    names = f"(members {', '.join(map(str, members[:6]))})"
    if have_left:
        return (
            f"the local= state of {len(members)} ranks that left is lost, because the ranks that mirrored it left at the same time "
            f"{names}: start the job again, from a checkpoint if it makes some, and take its hosts away one after the other, each "
            "when the ranks that are left have committed"
        )
    return (
        f"the local= state of {len(members)} lost ranks is lost, because the ranks that mirrored it were lost at the same time "
        f"{names}: start the job again, from a checkpoint if it makes some"
    )
