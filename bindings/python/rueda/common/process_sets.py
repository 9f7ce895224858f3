"""Process sets: for now the global one only; anything else is refused by name."""

_LATER = "process sets other than the global one are not available in this version of rueda"


class ProcessSet:
    """Some of the job's ranks.

    Parameters
    ----------
    ranks : iterable of int
        The members. ``global_process_set`` has all ranks and id 0; no other set can be registered
        yet, so every other set keeps ``process_set_id`` None and operations refuse it.
    """

    def __init__(self, ranks):
        ranks = list(ranks)
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise ValueError(f"ProcessSet needs ranks as ints, got {ranks!r}")
        self.process_set_id = None
        self.ranks = sorted(ranks)
        self.mpi_comm = None

    def size(self):
        """Number of members, or None while the set is not registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This process's place among the members, or None while the set is not registered."""
        return None if self.process_set_id is None else self.ranks.index(_this_rank())

    def included(self):
        """Whether this process is a member, or None while the set is not registered."""
        return None if self.process_set_id is None else _this_rank() in self.ranks

    def __str__(self):
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job; what that means is asked of the runtime each time."""

    def __init__(self):
        super().__init__([])
        self.process_set_id = 0

    @property
    def ranks(self):
        from rueda.common import basics

        return list(range(basics.size())) if basics.is_initialized() else []

    @ranks.setter
    def ranks(self, value):
        pass


global_process_set = _GlobalProcessSet()


def _this_rank():
    from rueda.common import basics

    return basics.rank()


def require_global(process_set):
    """Refuses every process set but the global one."""
    if process_set is not global_process_set:
        raise ValueError(f"{process_set} does not exist: {_LATER}")


def add_process_set(process_set):
    """Not available yet: raises NotImplementedError."""
    raise NotImplementedError(_LATER)


def remove_process_set(process_set):
    """Not available yet; the global set can never be removed, so the answer is False."""
    return False
