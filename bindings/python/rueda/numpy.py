"""Collectives on NumPy arrays, with the names and argument order of Horovod's PyTorch functions.

>>> import numpy as np, rueda as hvd
>>> hvd.init()
>>> hvd.allreduce(np.arange(4.0), op=hvd.Sum)

Functions without a trailing underscore leave their input alone and return a new array, or ``out``
where one is given; those with one work in place and need a writable C-contiguous array. ``*_async``
return a handle for `poll` and `synchronize`; until then the arrays belong to rueda. Without a name,
the n-th unnamed operation of a kind meets the n-th of every other rank.

Errors: ValueError when the call is wrong on this rank, HorovodInternalError when ranks disagree or
a rank is lost, `DeadlineExceeded` when a given timeout passes.
"""

from rueda import _array_collectives
from rueda._array_collectives import *  # noqa: F401,F403
from rueda._array_collectives import broadcast_async_
from rueda._compression import Compression
from rueda._objects import allgather_object, broadcast_object, named
from rueda._shared import empty, empty_like, zeros
from rueda._waiting import barrier, join, poll, synchronize, wait_any
from rueda.common import basics
from rueda.common.basics import *  # noqa: F401,F403
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError
from rueda.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_included,
    remove_process_set,
)

__all__ = [
    *basics.__all__,
    *_array_collectives.__all__,
    "Compression",
    "DeadlineExceeded",
    "HorovodInternalError",
    "RankLostError",
    "ProcessSet",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "empty",
    "empty_like",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "join",
    "poll",
    "process_set_included",
    "remove_process_set",
    "synchronize",
    "wait_any",
    "zeros",
]


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Broadcasts arrays in place: a dict of arrays, or a list of arrays or (name, array) pairs."""
    handles = [
        broadcast_async_(array, root_rank, name, process_set) for name, array in named(params)
    ]
    for handle in handles:
        synchronize(handle)
