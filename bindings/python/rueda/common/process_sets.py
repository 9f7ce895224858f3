"""Process sets: groups of ranks that run collectives among themselves.

Sets are added and removed by all ranks of the job, in the same order; operations in one wait for
nothing in another. What `rank` means: a set's ``rank()`` counts its members, everything else (its
``ranks``, the ``root_rank`` of a broadcast) names ranks of the job.

In an elastic job the sets of an epoch are there in the next one, with those of their members that
are left. Who joins the job is in none of them, and knows them in the order in which they were added.
"""

import ctypes

from rueda import _ffi
from rueda._runtime import runtime

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "process_set_included",
    "remove_process_set",
]


class ProcessSet:
    """Some of the job's ranks.

    Parameters
    ----------
    ranks_or_comm : iterable of int
        The members, in any order. Register the set with ``init(process_sets=[...])`` or
        `add_process_set`; until then ``process_set_id`` is None and operations refuse it. A
        communicator is a ValueError, since there is no MPI here.

    Attributes
    ----------
    process_set_id : int or None
    ranks : list of int
        Ascending.
    mpi_comm : None
        Horovod's; there is no MPI here.
    """

    def __init__(self, ranks_or_comm):
        try:
            ranks = list(ranks_or_comm)
        except TypeError:
            raise ValueError(
                f"ProcessSet needs the ranks of its members, got {ranks_or_comm!r}"
            ) from None
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise ValueError(f"ProcessSet needs ranks as ints, got {ranks!r}")
        self.ranks = sorted(ranks)
        self._given = self.ranks
        self.mpi_comm = None
        self._forget()

    def _forget(self):
        self.process_set_id = None
        self.key = None  # another object for each registration, for what is remembered by it
        self._members = []  # of the job, where a launcher gives these numbers

    def _register(self, process_set_id):
        self.process_set_id = process_set_id
        self.key = object()
        epoch = runtime.epoch
        if epoch is not None and process_set_id != _NOWHERE:
            self._members = [epoch.members[rank] for rank in self.ranks]
        if not any(each is self for each in _registered):
            _registered.append(self)

    def _enter_epoch(self, ids, ranks):
        """``ids``: of the job's sets, by ranks. ``ranks``: of those members of it that are left."""
        self.ranks = ranks
        process_set_id = ids.get(tuple(ranks)) if ranks else _NOWHERE
        if process_set_id is None:  # rank 0 had not heard that it was added
            self._forget()
            _registered.remove(self)
        else:
            self._register(process_set_id)

    def size(self):
        """Number of members, or None while the set is not registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This process's place among the members, or None while the set is not registered.

        ValueError for who is no member.
        """
        if self.process_set_id is None:
            return None
        if runtime.place.rank not in self.ranks:
            raise ValueError(_no_member(self))
        return self.ranks.index(runtime.place.rank)

    def included(self):
        """Whether this process is a member, or None while the set is not registered."""
        return None if self.process_set_id is None else runtime.place.rank in self.ranks

    def __str__(self):
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job; what that means is asked of the runtime each time."""

    def __init__(self):
        self.mpi_comm = None
        self.process_set_id = 0
        self.key = 0

    @property
    def ranks(self):
        return list(range(runtime.place.size)) if runtime.is_initialized() else []

    def size(self):
        return runtime.place.size

    def rank(self):
        return runtime.place.rank

    def included(self):
        return runtime.place.rank >= 0


_NOWHERE = -1  # id of one that has no members any more, or that this rank waits to be let into a job for
_registered = []  # since init; all but the global one
global_process_set = _GlobalProcessSet()


def _no_member(process_set):
    if not process_set.ranks:
        return f"none of the ranks of this process set is left in the job: {process_set}"
    return (
        f"rank {runtime.place.rank} is not a member of the provided process set: {process_set}; "
        "only its members may call its operations"
    )


def require_registered(process_set):
    """ValueError for what is no process set of the job."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, got {process_set!r}")
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} does not exist: add it on all ranks with "
            "init(process_sets=[...]) or add_process_set(...)"
        )


def id_for_operation(process_set):
    """The id of a registered set that has this rank; ValueError for any other.

    Call with a running runtime.
    """
    if process_set is global_process_set:
        return 0
    require_registered(process_set)
    if runtime.place.rank not in process_set.ranks:
        raise ValueError(_no_member(process_set))
    return process_set.process_set_id


def registered(process_set_id):
    """The set of this id; ValueError when there is none any more."""
    if process_set_id == 0:
        return global_process_set
    for process_set in _registered:
        if process_set.process_set_id == process_set_id:
            return process_set
    raise ValueError(f"the process set with id {process_set_id} does not exist any more")


def _known():
    """{id: ranks} of all sets of the job."""
    return {set_id: list(ranks) for set_id, ranks in runtime.process_sets().items()}


def get_process_set_ids_and_ranks():
    """All registered process sets as a dict from id to the list of ranks; 0 is the global one."""
    return _known()


def process_set_included(process_set_id=0):
    """Whether this process is a member of the set with this id; ValueError if there is none."""
    known = _known()
    if process_set_id not in known:
        raise ValueError(f"process set {process_set_id} does not exist: there are {sorted(known)}")
    return runtime.place.rank in known[process_set_id]


def add_process_set(process_set):
    """Registers a set. Every rank of the job calls this, members or not, with the same ranks.

    Calls from several threads must come in the same order on all ranks. Never needs to be allowed
    first: there is no cost to adding sets while the job runs.

    Parameters
    ----------
    process_set : ProcessSet or iterable of int

    Returns
    -------
    ProcessSet
        The same object if one was given.

    Raises
    ------
    ValueError
        On every rank: the ranks are none of the job's, or a set of the same ranks exists.
    HorovodInternalError
        On every rank: ranks named different sets.

    In an elastic job a function that begins anew may add its sets again: what has come from the epoch
    before with the same ranks is given, and an object is added with the ranks that it was made of.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.ranks = ranks = process_set._given
    if ranks and not (-(2**31) <= ranks[0] and ranks[-1] < 2**31):
        raise ValueError(f"{process_set}: these are no ranks")
    epoch = runtime.epoch
    if epoch is not None and epoch.provisional:
        process_set._register(_NOWHERE)
        return process_set
    array = (ctypes.c_int32 * len(ranks))(*ranks)
    try:
        added = runtime.change_process_sets(_ffi.library.rueda_add_process_set, array, len(ranks))
    except ValueError:
        if epoch is None or ranks not in epoch.process_sets:
            raise
        added = _ids()[tuple(ranks)]
    process_set._register(added)
    return process_set


def remove_process_set(process_set):
    """Takes a set back. Every rank of the job calls this, members or not.

    Operations pending in it end with an error. The object may be added again.

    Returns
    -------
    bool
        False for the global set and for one that is not registered: then nothing happens, on this
        rank or any other.
    """
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    if process_set.process_set_id in (0, _NOWHERE):  # what is left of it is the job, or nothing
        process_set._forget()
        _registered.remove(process_set)
        return True
    runtime.change_process_sets(
        _ffi.library.rueda_remove_process_set, process_set.process_set_id
    )
    removed = process_set.process_set_id
    for known in [known for known in _registered if known.process_set_id == removed]:
        runtime.forget_process_set(removed, known.key)
        known._forget()
        _registered.remove(known)
    return True


def _ids():
    """{ranks: id} of all sets of the job."""
    return {tuple(ranks): set_id for set_id, ranks in _known().items()}


def add_initial(process_sets):
    """The sets given to ``init``. Those that are registered already only get their id again."""
    is_outside = runtime.epoch is not None and runtime.epoch.provisional
    ids = {} if is_outside else _ids()
    seen = {0}
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"init(process_sets=...): {process_set!r} is no ProcessSet")
        known = ids.get(tuple(process_set.ranks))
        if is_outside:
            add_process_set(process_set)
            continue
        if known in seen:
            raise ValueError(
                f"init(process_sets=...): {process_set} is given twice, or has all ranks of the "
                "job, which is the global process set"
            )
        if known is None:
            known = add_process_set(process_set).process_set_id
            ids[tuple(process_set.ranks)] = known
        elif process_set.process_set_id is None:
            process_set._register(known)
        seen.add(known)


def forget_all():
    """After shutdown: all sets but the global one are gone."""
    for process_set in _registered:
        process_set._forget()
    _registered.clear()


def _enter_epoch():
    """Sets are what is left of them; those of who has waited outside are the job's, in their order."""
    epoch, ids = runtime.epoch, _ids()
    ranks_of = {member: rank for rank, member in enumerate(epoch.members)}
    others = iter(epoch.process_sets)
    for process_set in list(_registered):
        if process_set._members or not process_set.ranks:
            left = [ranks_of[member] for member in process_set._members if member in ranks_of]
        else:
            left = next(others, None)
            if left is None:  # nobody has added it yet
                _registered.remove(process_set)
                process_set._forget()
                continue
        process_set._enter_epoch(ids, sorted(left))


runtime.on_new_epoch.append(_enter_epoch)
