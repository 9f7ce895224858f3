"""Whether there is memory for what an optimizer's first step will ask for, before anything is moved.

Counted are gradients and the optimizer's state; parameters are there already, and move to shared memory where that has
room. What is counted is less than what will be needed, and what there is, more: who is refused here would have failed.
"""

import collections
import os
import resource

from rueda import _ffi
from rueda.common import basics
from rueda.torch.sharding import _layout

Need = collections.namedtuple("Need", "gradients state values", defaults=(0,))
Need.__doc__ = """Bytes of one rank. ``values``: of parameters that have no memory yet."""

Room = collections.namedtuple("Room", "nbytes what ranks")
Room.__doc__ = """Memory that there is, what bounds it, and how many ranks share it."""

CHOICES = (
    ("no shard=", None, None, False),
    ('shard="state"', "state", None, False),
    ('shard="gradients"', "gradients", None, False),
    ('shard="gradients", state_dtype="int8"', "gradients", "int8", False),
    ('shard="gradients", offload="/a/folder"', "gradients", None, True),
)
OF_ABSENT = (
    ('shard="parameters"', "parameters", None, False),
    ('shard="parameters", state_dtype="int8"', "parameters", "int8", False),
    ('shard="parameters", offload="/a/folder"', "parameters", None, True),
)
_BYTES = {"bf16": 2, "int8": 1}  # of one number, without scales


def need(sizes, kept, stage, ranks, state_dtype=None, in_file=False, absent=0):
    """What a rank needs.

    Parameters
    ----------
    sizes : list of (int, int)
        Of each parameter that is trained, its elements and their bytes.
    kept : dict
        `kept_for_each_element`'s.
    stage : str or None
    absent : int
        Bytes of all parameters that have no memory yet.
    """
    whole = sum(count * itemsize for count, itemsize in sizes)
    parts = 1 if stage is None else ranks
    gradients = whole if stage in (None, "state") else whole // ranks
    if state_dtype is None:
        state = sum(count * itemsize * sum(kept.values()) // 4 for count, itemsize in sizes)
    else:
        state = sum(count * sum(min(_BYTES[state_dtype], each) for each in kept.values()) for count, _ in sizes)
    state //= parts
    if in_file:
        state = min(state, 2 * _layout.BATCH_BYTES * len(kept) // parts)
    return Need(gradients, state, absent // ranks if stage == "parameters" else absent)


def fits(need, rooms, heap, moves=(0, 0)):
    """The first `Room` that is too small, or None.

    Parameters
    ----------
    heap : int
        Bytes that are set aside for shared memory already.
    moves : (int, int)
        Of parameters that will lie there: the bytes that they take there, and those that they give back.
    """
    for room in rooms:
        total = (need.gradients + need.state + need.values) * room.ranks
        if room.what == ADDRESSES:
            entering, leaving = moves
            total = need.state + max(0, need.gradients + need.values + entering - heap) - leaving
        if total > room.nbytes:
            return room
    return None


ADDRESSES = "the limit of address space (ulimit -v)"
_HOST = "this host's memory"
_GROUP = "the limit of this process's cgroup"


def rooms(ranks_here):
    """All `Room`s of this rank."""
    found = []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(Room(max(0, limit - _field("/proc/self/status", "VmSize")), ADDRESSES, 1))
    free = _field("/proc/meminfo", "MemAvailable")
    if free:
        found.append(Room(free + _field("/proc/meminfo", "SwapFree"), _HOST, ranks_here))
    group = cgroup_room("/sys/fs/cgroup", _own_cgroup())
    if group is not None:
        found.append(Room(group, _GROUP, 1))
    return found


def _field(path, name):
    """Bytes that a line of a file of /proc says; 0: it says nothing."""
    try:
        with open(path) as lines:
            for line in lines:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _own_cgroup():
    """The path of this process's group; None: there are none of version 2."""
    try:
        with open("/proc/self/cgroup") as lines:
            return next((line.strip()[3:] for line in lines if line.startswith("0::")), None)
    except OSError:
        return None


def cgroup_room(root, own):
    """What the limits of a group and of those around it leave, their cache of files counted as free. None: no limit."""
    least, folder = None, os.path.normpath(root + "/" + own) if own is not None else ""
    while folder.startswith(root):
        try:
            with open(folder + "/memory.max") as most, open(folder + "/memory.current") as now, open(folder + "/memory.stat") as stat:
                files = sum(int(line.split()[1]) for line in stat if line.split()[0] in ("active_file", "inactive_file"))
                left = max(0, int(most.read()) - int(now.read()) + files)
                least = left if least is None else min(least, left)
        except (OSError, ValueError):  # "max": no limit here
            pass
        folder = os.path.dirname(folder)
    return least


def _heap():
    """Bytes of address space that one rank's shared memory has."""
    most = 0
    with open("/proc/self/maps") as lines:
        for line in lines:
            if "memfd:rueda-heap" in line:
                begin, end = line.split()[0].split("-")
                most = max(most, int(end, 16) - int(begin, 16))
    return most


def require(parameters, kept, stage, state_dtype, in_file, wire):
    """MemoryError, on all ranks, where one has no room; says what is needed, and what would fit."""
    sizes = [(p.numel(), p.element_size()) for p in parameters if p.requires_grad]
    absent = sum(p.numel() * p.element_size() for p in parameters if p.is_meta)
    asked = need(sizes, kept, stage, wire.size, state_dtype, in_file, absent)
    together = basics.local_size() if wire.size == basics.size() else 1  # of a set's ranks, at least this one is here
    here, heap = rooms(together), _heap()
    short = fits(asked, here, heap, _moves(sizes, stage, wire.size, absent))
    first = wire.combine(wire.size if short is None else wire.rank, _ffi.MIN)
    if first >= wire.size:
        return
    if short is None:
        raise MemoryError(f"rank {wire.ranks[int(first)]} has too little memory for a step; its own error says why")
    raise MemoryError(message(sizes, kept, wire.size, asked, short, here, heap, absent))


def _moves(sizes, stage, ranks, absent):
    whole = 0 if stage is None or absent else sum(count * itemsize for count, itemsize in sizes)
    return whole // ranks if stage == "parameters" else whole, whole


def message(sizes, kept, ranks, asked, short, here, heap, absent=0):
    values = f"{_mib(asked.values)} for parameters, " if absent else ""
    lines = [
        f"a step needs {values}{_mib(asked.gradients)} for gradients and {_mib(asked.state)} for the optimizer's state on each rank, more than "
        f"{short.what} leaves: {_mib(short.nbytes)}" + (f" for {short.ranks} ranks" if short.ranks > 1 else "") + "."
    ]
    for text, stage, state_dtype, in_file in CHOICES if not absent else OF_ABSENT:
        other = need(sizes, kept, stage, ranks, state_dtype, in_file, absent)
        verdict = "fits" if fits(other, here, heap, _moves(sizes, stage, ranks, absent)) is None else "does not fit"
        parts = [other.values] * bool(absent) + [other.gradients, other.state]
        lines.append(f"  {text}: {' + '.join(map(_mib, parts))}, {verdict}")
    lines.append("  More ranks need less each; so do parameters of bfloat16.")
    return "\n".join(lines)


def _mib(nbytes):
    return f"{nbytes / (1 << 20):.0f} MiB"
