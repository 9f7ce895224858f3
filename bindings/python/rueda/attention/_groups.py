"""Who shares a sequence: process sets for data x sequence parallelism, and a process by itself."""

import sys

from rueda._runtime import runtime
from rueda.common import process_sets
from rueda.common.process_sets import ProcessSet, global_process_set


class _Local(ProcessSet):
    """This process alone. Needs no job, and nothing travels."""

    def __init__(self):
        self.mpi_comm = None
        self.process_set_id = -1
        self.key = "local"
        self.ranks = [0]

    def size(self):
        return 1

    def rank(self):
        return 0

    def included(self):
        return True

    def __reduce__(self):
        return "local"  # of it there is one, also in copied and loaded modules


local = _Local()


def set_of_ranks(ranks):
    """The process set of these ranks, made if there is none. Called by all ranks of the job alike."""
    ranks = sorted(ranks)
    if len(ranks) == runtime.place.size:
        return global_process_set
    if len(ranks) == 1:
        return local
    for known in process_sets._registered:
        if known.ranks == ranks:
            return known
    return process_sets.add_process_set(ranks)


def require(process_set):
    """ValueError for what is none, and for one that is not registered."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(
            f"process_set is {process_set!r}, expected a ProcessSet (hvd.add_process_set, sequence_parallel_sets) or a group of torch.distributed"
        )
    if process_set.process_set_id is None:
        raise ValueError(f"the process set is not registered: {process_set}")


def given(process_set):
    """The process set that a caller means: None is all ranks; a group of ``torch.distributed`` is the set of its ranks.

    ValueError for a group whose ranks have no process set yet, or are in another order.
    """
    if process_set is None:
        return global_process_set
    if isinstance(process_set, ProcessSet):  # as far as torch.compile gets
        return process_set
    torch_groups = sys.modules.get("torch.distributed")
    if torch_groups is None or not isinstance(process_set, torch_groups.ProcessGroup):
        return process_set
    ranks = list(torch_groups.get_process_group_ranks(process_set))
    if len(ranks) == 1:
        return local
    for known in (global_process_set, *process_sets._registered):
        if known.ranks == ranks:
            return known
    if ranks != sorted(ranks):
        raise ValueError(
            f"the group's ranks {ranks} are not ascending, as those of a process set are, in whose order sequences are sharded"
        )
    raise ValueError(
        f"there is no process set of the group's ranks {ranks} yet: call rueda.torch.distributed.process_set({ranks}) on all "
        "ranks of the job before"
    )


def of_id(set_id):
    """The process set of an id, `local` included."""
    return local if set_id == local.process_set_id else process_sets.registered(set_id)


def sequence_parallel_sets(size):
    """(sequence set, data set) of this rank, for data x sequence parallelism.

    ``size`` neighbouring ranks share a sequence; they are the sequence set. The data set has the
    ranks with this one's place in their sequences. All ranks of the job call it, in the same order.
    Sets that exist are used again.

    Raises
    ------
    ValueError
        ``size`` does not divide the number of ranks.
    """
    world, rank = runtime.place.size, runtime.place.rank
    if size < 1 or world % size:
        raise ValueError(f"{size} ranks to a sequence do not divide {world} ranks")
    groups = [range(start, start + size) for start in range(0, world, size)]
    groups += [range(place, world, size) for place in range(size)]
    sequence, data = (found for found in [_own(group, rank) for group in groups] if found)
    return sequence, data


def _own(ranks, rank):
    made = set_of_ranks(ranks)
    return made if rank in ranks else None
