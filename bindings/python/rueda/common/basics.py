"""Life cycle and topology, with Horovod's names; NumPy and PyTorch surfaces share them."""

import os
import warnings

from rueda import _ffi
from rueda._init_options import init_options
from rueda._runtime import runtime
from rueda.common import process_sets as _process_sets
from rueda.compat import variables
from rueda.timeline import start_timeline, stop_timeline

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "ccl_built",
    "counter",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "should_stop",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]

Average, Sum, Adasum, Min, Max, Product = (
    _ffi.AVERAGE,
    _ffi.SUM,
    _ffi.ADASUM,
    _ffi.MIN,
    _ffi.MAX,
    _ffi.PRODUCT,
)


def init(
    comm=None, process_sets=None, *, rank=None, size=None, job=None, rendezvous=None, key=None
):
    """Joins the job that this process was started in; alone, a job of one rank.

    Blocks until all ranks have called it. Does not join again when already initialised. Warns on
    rank 0 about variables of Horovod that have no effect here, and raises for one that cannot be
    done (docs/migrating.md).

    Parameters
    ----------
    comm : None
        Horovod's; ValueError for anything else, since there is no MPI here.
    process_sets : list of ProcessSet, optional
        Registered at once, the same on every rank, with the ids 1, 2, ... ValueError if one is
        given twice or has all ranks; the job has been joined nevertheless. ``"dynamic"``, with
        which Horovod allows `add_process_set`, is the same as None: it is always allowed.
    rank, size : int, optional
        For programs that place their processes themselves: both or neither. They win over what other
        launchers say. Under ruedarun they must say the same, unless ``job``, ``rendezvous`` and ``key`` are
        given as well: then this process takes part in that job, and for ruedarun it is one that has not
        called ``init``.
    job : str, optional
        With them, from two ranks on: a name that no other job of this user has, alike on all ranks.
    rendezvous : str, optional
        ``"host:port"``, a free port of rank 0's host. Without it ``RUEDA_RENDEZVOUS``, else all ranks
        are on this host and meet there without a port.
    key : bytes, optional
        The secret (16 to 4096 bytes) of ranks that meet at a port. Without it the file
        ``RUEDA_KEY_FILE``.
    """
    if comm:
        raise ValueError("init(comm=...) needs MPI, which rueda does not use; leave it out")
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f"init(process_sets={process_sets!r}): expected a list or 'dynamic'")
    _join(init_options(rank, size, job, rendezvous, key))
    if process_sets and process_sets != "dynamic":
        _process_sets.add_initial(process_sets)


def _join(options):
    if runtime.is_initialized():
        runtime.init()  # one more user
        place = runtime.place
        if options is not None and (options.rank, options.size) != (place.rank, place.size):
            raise ValueError(
                f"init was asked for rank {options.rank} of {options.size}, but this process is rank "
                f"{place.rank} of {place.size} already: shutdown() leaves that job"
            )
        return
    runtime.init(options)
    if runtime.place.rank == 0:
        for text in variables.warnings_of(os.environ):
            warnings.warn(text, stacklevel=3)  # in the line that called init


def shutdown():
    """Leaves the job. Operations in flight end with an error on the ranks that need this one.

    While a process group of torch.distributed is there the job goes on for it.
    """
    if runtime.shutdown("hvd"):
        _process_sets.forget_all()


def should_stop():
    """Whether to save and leave: true on all ranks at the same call once one of them was asked to.

    A signal of ``RUEDA_PREEMPTION_SIGNAL`` (SIGTERM or SIGUSR1 by default) to any rank asks. Signals
    are noted from the first call on; handlers of yours are called as well. Collective: all ranks
    call it equally often, in one order with their other operations; once per step, say, for a small
    allreduce's time. Once true it stays true.

    Raises
    ------
    RankLostError
        A rank was lost meanwhile.
    HorovodInternalError
        Not initialised.
    """
    return runtime.should_stop()


def is_initialized():
    """Whether ``init`` has been called, and ``shutdown`` not since."""
    return runtime.is_initialized()


def rank():
    """This process's number in the job, 0 to ``size() - 1``."""
    return runtime.place.rank


def size():
    """Number of ranks in the job."""
    return runtime.place.size


def local_rank():
    """This rank's place among the ranks of its host."""
    return runtime.place.local_rank


def local_size():
    """Number of ranks on this host."""
    return runtime.place.local_size


def cross_rank():
    """Place of this host among the hosts that have this local rank."""
    return runtime.place.cross_rank


def cross_size():
    """Number of hosts that have this local rank."""
    return runtime.place.cross_size


def is_homogeneous():
    """Whether every host has the same number of ranks."""
    return runtime.place.is_homogeneous


def counter(name):
    """A counter of this rank since init, by its name ("batches", ...); -1 if there is none.

    docs/counters.md says what each counts.
    """
    return runtime.counter(name)


def counters():
    """All counters of this rank, as a dict by name."""
    return runtime.counters()


gather_objects = None  # `rueda._objects.allgather_object`, which is built on this module


def stats(reset=False, all_ranks=False):
    """What this rank did since init or the last reset, as a dict; docs/counters.md says what each entry is.

    Numbers by their names, ``"transport"``, and ``"late_ranks"``: seconds by rank for which threads of this
    one have slept until that rank came (-1: others). Takes some microseconds; no step waits for it.

    ``reset``: the next call tells of what comes from here on. ``all_ranks``: collective; a list of all
    ranks' dicts, each with ``"late_seconds"`` too: how long the others have slept until this one came.
    ValueError when not initialised.
    """
    own = runtime.stats(bool(reset))
    if not all_ranks:
        return own
    everybody = gather_objects(own)
    for rank, one in enumerate(everybody):
        one["late_seconds"] = sum(other["late_ranks"].get(rank, 0.0) for other in everybody)
    return everybody


# rueda needs none of these: it brings its own transports, so the answers are constant.


def mpi_threads_supported():
    """ValueError: there is no MPI."""
    raise ValueError("MPI is not enabled: rueda does not use it")


def mpi_enabled():
    return False


def mpi_built():
    return False


def gloo_enabled():
    """True: collectives on the CPU need no MPI, which is what Horovod's scripts ask here."""
    return True


def gloo_built():
    return True


def nccl_built():
    return 0


def ddl_built():
    return False


def ccl_built():
    return False


def cuda_built():
    return False


def rocm_built():
    return False
