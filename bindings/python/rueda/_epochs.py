"""What this process knows of the epoch of its job that it is in, and what its environment says of that."""

import collections
import ctypes
import os

from rueda import _ffi

_lib = _ffi.library

Epoch = collections.namedtuple(
    "Epoch",
    "number member branch provisional target announced members last_ranks has_target process_sets elastic",
)
Epoch.__doc__ = """One rueda_epoch: its lists by rank; ``process_sets`` are lists of ranks, to be formed anew."""

# Field of a place: the variables that launchers set for it.
_VARIABLES = {
    "rank": ("RUEDA_RANK", "HOROVOD_RANK"),
    "size": ("RUEDA_SIZE", "HOROVOD_SIZE"),
    "local_rank": ("RUEDA_LOCAL_RANK", "HOROVOD_LOCAL_RANK"),
    "local_size": ("RUEDA_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE"),
    "cross_rank": ("RUEDA_CROSS_RANK", "HOROVOD_CROSS_RANK"),
    "cross_size": ("RUEDA_CROSS_SIZE", "HOROVOD_CROSS_SIZE"),
}


def read_epoch(context):
    """The `Epoch` of a context; None where no launcher decides epochs."""
    epoch = _ffi.Epoch()
    epoch.struct_size = ctypes.sizeof(epoch)
    if _lib.rueda_epoch_of(context, ctypes.byref(epoch)) != _ffi.OK:
        return None
    count = max(0, _lib.rueda_epoch_members(context, None, None, None, 0))
    members, last_ranks, has_target = (ctypes.c_uint64 * count)(), (ctypes.c_int32 * count)(), (ctypes.c_int32 * count)()
    _lib.rueda_epoch_members(context, members, last_ranks, has_target, count)
    return Epoch(
        epoch.number,
        epoch.member,
        epoch.branch,
        epoch.provisional != 0,
        epoch.target,
        epoch.announced,
        list(members),
        list(last_ranks),
        [each != 0 for each in has_target],
        [_process_set(context, index, epoch.size) for index in range(epoch.process_sets)],
        epoch.elastic != 0,
    )


def _process_set(context, index, size):
    ranks = (ctypes.c_int32 * size)()
    return ranks[: _lib.rueda_epoch_process_set(context, index, ranks, size)]


def rewrite_environment(place):
    """Tells programs that read their launcher's variables what is so now; those that are not set stay so."""
    for field, names in _VARIABLES.items():
        for name in names:
            if name in os.environ:
                os.environ[name] = str(getattr(place, field))
