"""Every counter of rueda, once, as data.

From these rows scripts/generate_tables.py makes the structs that hold them and the tables that name
them (runtime/observe/counters), and the tables of docs/counters.md. README.md beside this file says
how to add one. Plain Python 3.9; nothing is imported but typing.
"""

from typing import NamedTuple

# A sum only grows; a gauge says how it is now.
SUM, GAUGE = "sum", "gauge"


class Counter(NamedTuple):
    name: str  # also of the field
    unit: str
    kind: str
    counted_by: str
    meaning: str


_SET, _TRANSPORT = "each process set's group engine", "the transport"
_DEVICES = "the communicators of GPU tensors"
_HEAP = "the heap, of the process"
_RECORDER, _OBSERVER = "the flight recorder", "the agent, which reads the flight recorder"

# rueda_counter in C, Context::counter in C++, rueda.counters() in Python: of this rank, since init.
COUNTERS = (
    Counter("batches", "batches", SUM, _SET,
        "collectives that were run, each of one tensor or of several fused"),
    Counter("tensors", "tensors", SUM, _SET,
        "tensors in these"),
    Counter("fused_tensors", "tensors", SUM, _SET,
        "of these, tensors that shared their batch with others"),
    Counter("cached_tensors", "tensors", SUM, _SET,
        "tensors that were submitted by their number in the response cache, or to a step plan"),
    Counter("cache_evictions", "tensors", SUM, _SET,
        "tensors that the full response cache has forgotten"),
    Counter("control_messages", "messages", SUM, _TRANSPORT,
        "messages of the agreement that this rank has sent"),
    Counter("bytes_reduced", "bytes", SUM, _SET,
        "bytes of the collectives inside a host that shared memory has carried"),
    Counter("shm_bytes", "bytes", SUM, "the transport and each process set's group engine",
        "bytes_reduced, and bytes of messages that this rank has sent through shared memory"),
    Counter("tcp_bytes", "bytes", SUM, _TRANSPORT,
        "bytes of messages that this rank has sent over TCP, without their headers"),
    Counter("mpi_bytes", "bytes", SUM, _TRANSPORT,
        "bytes of messages that this rank has sent through MPI, without their headers"),
    Counter("bytes_in_place", "bytes", SUM, _SET,
        "of bytes_reduced, those that moved straight from and to tensors in shared memory"),
    Counter("bytes_cma", "bytes", SUM, _SET,
        "of bytes_reduced, those that the kernel read from a peer's private memory (cma)"),
    Counter("planned_batches", "batches", SUM, _SET,
        "of the batches, those of a step plan: they ran without a message"),
    Counter("plans", "plans", SUM, _SET,
        "step plans that were frozen"),
    Counter("revocations", "plans", SUM, _SET,
        "step plans that were given up, because a rank did something else or was late"),
    Counter("nccl_registrations", "blocks", SUM, _DEVICES,
        "blocks of GPU memory that an NCCL communicator was told of, each once for each communicator"),
    Counter("nccl_windows", "blocks", SUM, _DEVICES,
        "of these, symmetric windows"),
    Counter("nccl_registered_bytes", "bytes", SUM, _DEVICES,
        "bytes of these blocks"),
    Counter("wakeups", "times", SUM, "the background thread",
        "how often the background thread woke up"),
    Counter("recording", "0 or 1", GAUGE, "the timeline's recorder",
        "1 while a timeline or a summary is made"),
    Counter("heap_in_use", "bytes", GAUGE, _HEAP,
        "bytes of this process's shared memory that tensors have (docs/memory.md)"),
    Counter("heap_peak", "bytes", GAUGE, _HEAP,
        "the most of these at any time since the process's first init"),
    Counter("heap_limit", "bytes", GAUGE, _HEAP,
        "the most that there can be (RUEDA_HEAP_BYTES)"),
)

_ENGINE, _WAITS, _MARKS = "executors", "waiting threads", "the framework's binding"
_KINDS = ("allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "barrier", "send", "recv", "reduce",
    "gather", "scatter")

# rueda_stats in C, Context::stats in C++, rueda.stats() in Python: of this rank, since init or the last reset. A name
# never changes its meaning.
STATS = (
    Counter("seconds", "seconds", SUM, "the clock",
        "time that these numbers are about"),
    Counter("size", "ranks", GAUGE, "the job",
        "ranks of the job"),
    Counter("operations", "operations", SUM, _ENGINE,
        "collectives and messages that have ended well, as the program asked for them: one for each tensor"),
    Counter("bytes", "bytes", SUM, _ENGINE,
        "bytes of these on this rank: of what it gave; of a recv, of what came"),
    Counter("batches", "batches", SUM, _ENGINE,
        "collectives that were run, each of one tensor or of several fused"),
    Counter("planned_batches", "batches", SUM, _ENGINE,
        "of these, those of a step plan: they ran without a message"),
    Counter("planned_share", "of 1", GAUGE, _ENGINE,
        "planned_batches of batches"),
    *(Counter(f"{kind}_operations", "operations", SUM, _ENGINE, f"of operations, {kind}") for kind in _KINDS),
    *(Counter(f"{kind}_bytes", "bytes", SUM, _ENGINE, f"of bytes, {kind}") for kind in _KINDS),
    Counter("collective_seconds_mean", "seconds", GAUGE, _ENGINE,
        "of a batch, from its start until its end on this rank, waiting for other ranks included"),
    Counter("collective_seconds_p95", "seconds", GAUGE, _ENGINE,
        "95 of 100 batches took no longer; to an eighth"),
    Counter("busy_seconds", "seconds", SUM, _ENGINE,
        "time in which a batch was under way"),
    Counter("overlapped_share", "of 1", GAUGE, _ENGINE,
        "of busy_seconds, what passed while no thread of the program waited: what computing has hidden"),
    Counter("waiting_seconds", "seconds", SUM, _WAITS,
        "time in which a thread of the program waited for an operation"),
    Counter("late_ranks_seconds", "seconds", SUM, _WAITS,
        "of that, how long threads slept because another rank had not come yet"),
    Counter("steps", "steps", SUM, _MARKS,
        "optimizer steps begun; where no wrapped optimizer tells of them, rounds of a step plan"),
    Counter("step_seconds_mean", "seconds", GAUGE, _MARKS,
        "from the beginning of a step to that of the next"),
    Counter("step_seconds_p95", "seconds", GAUGE, _MARKS,
        "95 of 100 steps took no longer; to an eighth"),
    Counter("data_wait_seconds", "seconds", SUM, "rueda.data, or marks \"wait for data\"",
        "time in which the program waited for its next batch of data"),
)

# "counters" of rueda status --json: how far each rank is, as its agent has seen it last.
PROGRESS = (
    Counter("submitted", "operations", SUM, _RECORDER,
        "operations that were submitted one by one, outside of a step plan"),
    Counter("ended", "operations", SUM, _RECORDER,
        "of these, those that have ended"),
    Counter("planned_batches", "batches", SUM, _RECORDER,
        "batches of a step plan that were entered"),
    Counter("planned_tensors", "tensors", SUM, _RECORDER,
        "tensors in these"),
    Counter("oldest_wait_ms", "milliseconds", GAUGE, _OBSERVER,
        "age of the oldest operation that has not ended; 0: none waits"),
)

# The line "communication" of ruedarun --summary, from fields of RankSummary (proto/wire.proto).
SUMMARY = (
    Counter("bytes", "bytes", SUM, "the timeline's recorder",
        "bytes of the tensors in batches that have ended (not of what moved)"),
    Counter("batches", "batches", SUM, "the timeline's recorder",
        "batches that have ended"),
    Counter("planned_batches", "batches", SUM, "the timeline's recorder",
        "of these, those of a step plan"),
)
