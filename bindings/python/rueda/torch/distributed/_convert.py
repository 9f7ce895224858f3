"""Process groups of PyTorch and process sets of hvd: each from the other."""

import torch.distributed as dist

from rueda.common import process_sets
from rueda.common.process_sets import ProcessSet, add_process_set, global_process_set


def process_set(group=None):
    """The process set of a group's ranks, for ``hvd`` and attention.

    Where there is none yet it is added, which all ranks of the job take part in, members or not: those give
    the list of ranks instead of the group.

    Parameters
    ----------
    group : ProcessGroup or iterable of int, optional
        None: all ranks.
    """
    if group is None:
        return global_process_set
    ranks = (
        dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else list(group)
    )
    if sorted(ranks) == global_process_set.ranks:
        return global_process_set
    for known in process_sets._registered:
        if known.ranks == sorted(ranks):
            return known
    return add_process_set(ProcessSet(ranks))


def process_group(process_set, **arguments):
    """A process group of a set's ranks; its members alone call it.

    ``arguments`` are those of ``torch.distributed.new_group``.
    """
    return dist.new_group(
        process_set.ranks, backend="rueda", use_local_synchronization=True, **arguments
    )
