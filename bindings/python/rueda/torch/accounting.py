"""What memory a job takes: of each rank, and of each host, where what ranks share counts once.

`_storages` counts tensors, `activations` what autograd keeps, `_memory_table` is the text.
"""

import collections
import socket

from rueda._objects import allgather_object
from rueda._process_memory import read_kibibytes
from rueda._runtime import runtime
from rueda._waiting import barrier
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch import _memory_table
from rueda.torch._storages import Storages

_TENSORS = "parameters", "buffers", "gradients", "state"

RankMemory = collections.namedtuple(
    "RankMemory",
    "rank host parameters buffers gradients state activations heap heap_peak heap_limit resident proportional resident_peak",
)
RankMemory.__doc__ = """Bytes of one rank; None where nothing is known.

``parameters``, ``buffers``, ``gradients``, ``state`` (of optimizers): memory of tensors, each storage once, under
the first of these names. ``activations``: the most that was kept for backward. ``heap``, ``heap_peak``,
``heap_limit``: shared memory of this process that tensors have, had at most, may have. ``resident``: memory of
the process, with all that it shares (RSS); ``proportional``: what it shares divided by those who do (PSS);
``resident_peak``: the most that was resident (VmHWM)."""

HostMemory = collections.namedtuple(
    "HostMemory", "host ranks parameters buffers gradients state activations heap heap_peak proportional"
)
HostMemory.__doc__ = """Bytes of one host's ``ranks``: sums, in which memory that several ranks see counts once."""

_COLUMNS = {
    "parameters": "parameters",
    "buffers": "buffers",
    "gradients": "gradients",
    "state": "state",
    "activations": "activations",
    "heap": "shared heap",
    "heap_peak": "at most",
    "resident": "resident",
    "proportional": "proportional",
    "resident_peak": "at most",
}


class MemoryReport:
    """``str()`` is a table.

    Attributes
    ----------
    ranks : list of RankMemory
    hosts : list of HostMemory
    """

    def __init__(self, ranks, hosts):
        self.ranks, self.hosts = ranks, hosts

    def __str__(self):
        shown = self.ranks[: _memory_table.MOST_ROWS]
        rows = [(f"rank {each.rank}", _values(each)) for each in shown]
        rows += [
            (f"{host.host} ({len(host.ranks)} rank{'s' * (len(host.ranks) > 1)})", _values(host))
            for host in self.hosts
        ]
        lines = _memory_table.table("memory", list(_COLUMNS.values()), rows)
        if len(shown) < len(self.ranks):
            lines.append(f"and {len(self.ranks) - len(shown)} more ranks: report.ranks has all")
        return "\n".join(lines)

    def __repr__(self):
        return f"<MemoryReport of {len(self.ranks)} ranks on {len(self.hosts)} hosts; print it>"


def _values(each):
    return [getattr(each, name, None) for name in _COLUMNS]


def memory_report(model=None, optimizer=None, activations=None, collective=True, process_set=global_process_set):
    """What memory this job takes at this moment.

    Parameters
    ----------
    model : torch.nn.Module or iterable of them, optional
        Whose parameters, buffers and gradients are counted.
    optimizer : torch.optim.Optimizer or iterable of them, optional
        Whose state is counted; its parameters and gradients too.
    activations : measure_activations, optional
        What has measured them.
    collective : bool
        All ranks of ``process_set`` call this, and each gets the report of all. False: of this rank alone.

    Returns
    -------
    MemoryReport
    """
    alone = not collective or not basics.is_initialized()
    if not alone:
        barrier(process_set)  # nobody is in the middle of a step
    mine = _of_this_rank(_listed(model), _listed(optimizer), activations)
    everyone = [mine] if alone else allgather_object(mine, process_set=process_set)
    ranks = [RankMemory(**each["values"]) for each in everyone]
    hosts = collections.OrderedDict()
    for each in everyone:
        hosts.setdefault(each["host"], []).append(each)
    return MemoryReport(ranks, [_of_host(members) for members in hosts.values()])


def _listed(given):
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _groups(optimizer):
    """Without asking a DistributedOptimizer for them, which may wait for gradients then."""
    return vars(optimizer).get("param_groups") or optimizer.param_groups


def _of_this_rank(models, optimizers, activations):
    counted = Storages()
    groups = [group for each in optimizers for group in _groups(each)]
    parameters = [p for model in models for p in model.parameters()]
    parameters += [p for group in groups for p in group["params"]]
    own = [each.tensors_kept() for each in optimizers if hasattr(each, "tensors_kept")]
    counted.count("parameters", parameters + [one["parameters"] for one in own])
    counted.count("buffers", [b for model in models for b in model.buffers()])
    counted.count("gradients", [p.grad for p in parameters] + [one["gradients"] for one in own])
    counted.count("state", [dict(each.state) for each in optimizers] + [one["state"] for one in own])
    running = basics.is_initialized()
    counters = runtime.counters() if running else {}
    status, rollup = read_kibibytes("/proc/self/status"), read_kibibytes("/proc/self/smaps_rollup")
    name = socket.gethostname()
    values = {
        "rank": basics.rank() if running else 0,
        "host": name,
        **counted.sums,
        "activations": None if activations is None else activations.peak,
        "heap": counters.get("heap_in_use", 0),
        "heap_peak": counters.get("heap_peak", 0),
        "heap_limit": counters.get("heap_limit", 0),
        "resident": status.get("VmRSS"),
        "proportional": rollup.get("Pss"),
        "resident_peak": status.get("VmHWM"),
    }
    return {"values": values, "host": (name, _boot()), "shared": counted.shared}


def _boot():
    """Tells hosts of one name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _of_host(members):
    values = [each["values"] for each in members]
    sums = {name: sum(each[name] for each in values) for name in (*_TENSORS, "heap", "heap_peak")}
    seen = set()
    for each in members:
        for name, place, nbytes in each["shared"]:
            if place in seen:
                sums[name] -= nbytes
            seen.add(place)
    for name in ("activations", "proportional"):
        known = [each[name] for each in values]
        sums[name] = None if None in known else sum(known)
    return HostMemory(host=values[0]["host"], ranks=[each["rank"] for each in values], **sums)
