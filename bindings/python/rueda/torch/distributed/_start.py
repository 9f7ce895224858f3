"""From `init_process_group` and `new_group` to a group: who is in the job, and where it comes from.

Under ruedarun the job is the launcher's. Else it forms from what the call says: rank and size, and a name
that rank 0 tells the others through the c10d store; nothing secret goes through that store.
"""

import functools
import os
import secrets
import socket
from datetime import timedelta

import torch.distributed as dist

from rueda import _ffi
from rueda._meeting import machine
from rueda._runtime import runtime
from rueda.torch.distributed import _functional, _monitored
from rueda.torch.distributed._errors import as_backend_error
from rueda.torch.distributed._process_group import ProcessGroup

USER = "torch.distributed"  # of the runtime; hvd is another one
_open = 0  # groups of this process

_monitored.teach_pytorch(ProcessGroup)
_functional.teach_pytorch()


def create(options, _backend_options):
    """What PyTorch calls for each group that this rank is a member of."""
    global _open
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    try:
        if ranks == list(range(size)) and rank == ranks[rank]:
            join(rank, size, options.store)
        elif not runtime.is_initialized():
            raise ValueError(
                f"the first group of backend rueda must have all ranks, not {ranks} alone: the job is made with it. "
                'Call init_process_group("rueda") or hvd.init(), or new_group(backend="rueda") without ranks, first'
            )
        group = ProcessGroup(rank, ranks, options.group_id, options.timeout, _closed)
    except Exception as error:
        raise as_backend_error(error) from None
    _open += 1
    return group


def from_store(store, rank, size, timeout=timedelta(minutes=30)):
    """A group of the ``size`` processes that share a store, which PyTorch does not know of.

    For libraries that form groups anew as processes come and go: each time from another store, or behind another
    prefix. When it is closed, by ``shutdown`` or ``abort``, the job is left, also one that has lost a rank.
    """
    try:
        join(rank, size, store)
        group = ProcessGroup(
            rank, range(size), "store", timeout, functools.partial(_closed, is_alone=True)
        )
    except Exception as error:
        raise as_backend_error(error) from None
    global _open
    _open += 1
    return group


def _closed(is_alone=False):
    """A group of this process is no more; with the last one the job is left, unless others use it.

    A default group of another backend may: its store is the job's, and it may want another group of ours.
    """
    global _open
    _open -= 1
    if _open == 0 and (
        is_alone or dist.group.WORLD is None or isinstance(dist.group.WORLD, ProcessGroup)
    ):
        runtime.shutdown(USER)


def join(rank, size, store):
    """Makes this process that rank of the job. ValueError with both values: it is another one."""
    if not runtime.is_initialized():
        _check_launcher(rank, size)
        _form(rank, size, store)
    else:
        runtime.init(user=USER)
    place = runtime.place
    if rank != place.rank or size > place.size:
        raise ValueError(
            f"torch.distributed says that this is rank {rank} of {size}, but it is rank {place.rank} of "
            f"{place.size} of the job"
        )


def _check_launcher(rank, size):
    for of_rank, of_size in (
        ("RUEDA_RANK", "RUEDA_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("RANK", "WORLD_SIZE"),
    ):
        said, of = os.environ.get(of_rank), os.environ.get(of_size)
        if said is not None and of == str(size) and said != str(rank):
            raise ValueError(
                f"torch.distributed says that this is rank {rank} of {size}, but the launcher says "
                f"{of_rank}={said} and {of_size}={of}"
            )


def _form(rank, size, store):
    if "RUEDA_JOB_ID" in os.environ:
        return runtime.init(user=USER)
    job, rendezvous = _agree(rank, size, store) if size > 1 else (None, None)
    runtime.init(
        _ffi.InitOptions(
            _ffi.ctypes.sizeof(_ffi.InitOptions),
            rank,
            size,
            job.encode() if job else None,
            rendezvous.encode() if rendezvous else None,
            None,
            0,
        ),
        user=USER,
    )


def _agree(rank, size, store):
    """(the job's name, where it meets or None). A store serves one start after the other."""
    start = (store.add("rueda/starts", 1) - 1) // size
    store.set(f"rueda/{start}/host/{rank}", machine())
    key = f"rueda/{start}/job"
    if rank == 0:
        hosts = {store.get(f"rueda/{start}/host/{other}").decode() for other in range(size)}
        store.set(key, f"{secrets.token_hex(16)} {_meeting_point() if len(hosts) > 1 else ''}")
    job, _, rendezvous = store.get(key).decode().partition(" ")
    return job, rendezvous or None


def _meeting_point():
    chosen = os.environ.get("RUEDA_RENDEZVOUS")
    if chosen:
        return chosen
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{os.environ.get('MASTER_ADDR') or socket.getfqdn()}:{free.getsockname()[1]}"
