"""What becomes of each environment variable that Horovod knows: the one table.

The table of docs/migrating.md and the findings of `rueda.migrate` are made from it. What the C++
core reads itself comes from the table of settings (`horovod_settings`).

=========  =======================================================================================
honoured   it means what it meant; a ``RUEDA_*`` variable of the same meaning, if set, comes first
mapped     it sets a ``RUEDA_*`` variable that is not quite the same
given      the launcher sets it for every rank, and scripts may read it
warned     it has no effect here: `init` warns on rank 0, with the reason
elsewhere  Horovod's library does not read it while a job runs, and neither does rueda
=========  =======================================================================================
"""

from typing import NamedTuple, Tuple

from rueda.compat import horovod_settings

HONOURED, MAPPED, GIVEN = "honoured", "mapped", "given"
WARNED, ELSEWHERE = "warned", "elsewhere"


class Variable(NamedTuple):
    name: str
    fate: str
    what: str  # what it does; WARNED: why not, and what to use
    own: str = ""  # rueda's variable
    quiet: Tuple[str, ...] = ("", "0")  # WARNED: values that ask for nothing


def _all(fate, what, *names, **fields):
    return [Variable(name, fate, what, **fields) for name in names]


_NO_GPU = "rueda has no such setting for CUDA tensors"
_NO_MPI = "rueda uses MPI only to move bytes (RUEDA_TRANSPORT=mpi)"
_NO_AUTOTUNE = "nothing is tuned, and no log is written (docs/benchmarks.md)"
_NO_SPARK = "processes, their paths and GPUs are Spark's own affair; settings of its session say it (docs/spark.md)"
_HIERARCHY = (
    "data takes the shortest way by itself: shared memory inside a host, TCP between hosts"
)
_PLACE = "this process's place in the job; what is set by hand is overwritten"
_INSTALL = "read when Horovod is compiled; rueda compiles nothing when it is installed"
_OTHER = "belongs to another program; rueda leaves it alone"

# Of a rank's place, which ruedarun sets for its ranks.
PLACE = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)

VARIABLES = [
    *(Variable(name, HONOURED, what, own) for name, (own, what) in horovod_settings.HONOURED.items()),
    *(Variable(name, MAPPED, what, own[0]) for name, (own, what) in horovod_settings.SWITCHES.items()),
    Variable(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        HONOURED,
        "nothing to do: process sets may always be added and removed after init",
    ),
    *_all(GIVEN, _PLACE, *PLACE),
    Variable("HOROVOD_HOSTNAME", GIVEN, "set by horovodrun; rueda asks the system instead"),
    Variable(
        "HOROVOD_CYCLE_TIME",
        WARNED,
        "rueda has no cycle: ranks are woken by tensors and by each other",
        quiet=("",),
    ),
    *_all(
        WARNED,
        _HIERARCHY,
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "HOROVOD_TORUS_ALLREDUCE",
    ),
    *_all(WARNED, _NO_GPU, "HOROVOD_BATCH_D2D_MEMCOPIES", quiet=("", "0", "1")),
    *_all(WARNED, _NO_GPU, "HOROVOD_NUM_NCCL_STREAMS", quiet=("", "1")),
    *_all(WARNED, _NO_GPU, "HOROVOD_ENABLE_ASYNC_COMPLETION"),
    Variable("HOROVOD_DISABLE_NVTX_RANGES", HONOURED, "1: a profiler that listens through NVTX sees no ranges of rueda's"),
    Variable(
        "HOROVOD_ENABLE_XLA_OPS", WARNED, "XLA cannot compile rueda's collectives; leave out jit_compile=True (docs/tensorflow.md)"
    ),
    Variable(
        "HOROVOD_DISABLE_GROUP_FUSION",
        WARNED,
        "a group is one operation here, whatever it is batched with; RUEDA_FUSION_THRESHOLD=0 "
        "fuses nothing",
    ),
    *_all(
        WARNED,
        _NO_AUTOTUNE,
        "HOROVOD_AUTOTUNE_LOG",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    ),
    Variable(
        "HOROVOD_CONTROLLER",
        WARNED,
        _NO_MPI + ": its own agreement takes the place of both controllers",
        quiet=("", "gloo"),
    ),
    Variable(
        "HOROVOD_CPU_OPERATIONS",
        WARNED,
        "rueda's own transport takes the place of MPI, Gloo and oneCCL",
        quiet=("", "gloo"),
    ),
    *_all(WARNED, _NO_MPI, "HOROVOD_MPI_THREADS_DISABLE", "HOROVOD_ADASUM_MPI_CHUNK_SIZE"),
    Variable("HOROVOD_CCL_CACHE", WARNED, "rueda does not use oneCCL"),
    Variable(
        "HOROVOD_THREAD_AFFINITY",
        WARNED,
        "rueda's thread sleeps while there is nothing to do and is not bound to a core; bind the "
        "whole rank with taskset or numactl",
        quiet=("",),
    ),
    Variable(
        "HOROVOD_GLOO_IFACE",
        WARNED,
        "Gloo is not used; RUEDA_TCP_ADDRESS is the address that ranks listen on",
    ),
    Variable(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        WARNED,
        "Gloo is not used; RUEDA_START_TIMEOUT bounds init, RUEDA_STALL_SHUTDOWN_TIME_SECONDS an "
        "operation that a rank does not join; a rank that dies is noticed at once",
    ),
    *_all(
        WARNED,
        "ranks meet through the launcher, over a socket that they inherit",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        quiet=("", "-1"),
    ),
    Variable("HOROVOD_ELASTIC", GIVEN, "1 in a job whose ranks may come and go (--min-np, --host-discovery-script)"),
    Variable(
        "HOROVOD_SPARK_START_TIMEOUT",
        ELSEWHERE,
        "rueda.spark.run reads it: seconds in which all tasks must have begun (600)",
    ),
    *_all(
        WARNED,
        _NO_SPARK,
        "HOROVOD_SPARK_PYTHONPATH",
        "HOROVOD_SPARK_WORK_DIR",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
        "_HOROVOD_SECRET_KEY",
    ),
    *_all(
        ELSEWHERE,
        "under mpirun or mpiexec, this rank's place in the job (docs/launchers.md)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    ),
    *_all(
        ELSEWHERE,
        _OTHER,
        "OMPI_MCA_plm_rsh_agent",
        "LSB_JOBID",
        "CSM_ALLOCATION_ID",
        "DDL_OPTIONS",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLE",
        "CCL_ROOT",
        "MAKEFLAGS",
    ),
    Variable("PYTHONUNBUFFERED", GIVEN, "1 unless the user has set it"),
    *_all(
        ELSEWHERE,
        "read by Horovod's own tests only",
        "HOROVOD_MIXED_INSTALL",
        "HOROVOD_TEST_GPU",
    ),
    *_all(
        ELSEWHERE,
        _INSTALL,
        *(
            f"HOROVOD_{with_}_{part}"
            for with_ in ("WITH", "WITHOUT")
            for part in ("TENSORFLOW", "PYTORCH", "MXNET", "MPI", "GLOO", "NVTX")
        ),
        "HOROVOD_GPU",
        "HOROVOD_GPU_OPERATIONS",
        "HOROVOD_GPU_ALLREDUCE",
        "HOROVOD_GPU_ALLGATHER",
        "HOROVOD_GPU_BROADCAST",
        "HOROVOD_GPU_ALLTOALL",
        "HOROVOD_GPU_REDUCESCATTER",
        "HOROVOD_ALLOW_MIXED_GPU_IMPL",
        "HOROVOD_NCCL_HOME",
        "HOROVOD_NCCL_INCLUDE",
        "HOROVOD_NCCL_LIB",
        "HOROVOD_NCCL_LINK",
        "HOROVOD_NVTX_INCLUDE",
        "HOROVOD_CUDA_HOME",
        "HOROVOD_ROCM_HOME",
        "HOROVOD_BUILD_CUDA_CC_LIST",
        "HOROVOD_BUILD_ARCH_FLAGS",
        "HOROVOD_CMAKE",
        "HOROVOD_DEBUG",
        "HOROVOD_SKIP_COMPILE",
        "HOROVOD_LOCAL_VERSION",
    ),
]

BY_NAME = {variable.name: variable for variable in VARIABLES}


def warnings_of(environment):
    """One text for each variable that is set and has no effect."""
    return [
        f"{variable.name} has no effect: {variable.what}"  # not its value: one is a secret
        for variable in VARIABLES
        if variable.fate == WARNED and _asks_for_something(variable, environment.get(variable.name))
    ]


def _asks_for_something(variable, value):
    return value is not None and value.strip().lower() not in variable.quiet


def table():
    """The table of docs/migrating.md; variables that share their row's text share the row."""
    rows = {}
    for variable in VARIABLES:
        rows.setdefault((variable.fate, variable.own, variable.what), []).append(variable.name)
    lines = ["| variable | here | what it does, or why it does nothing |", "|---|---|---|"]
    for (fate, own, what), names in rows.items():
        shown = "<br>".join(f"`{name}`" for name in names)
        lines.append(f"| {shown} | {fate}{own and f': `{own}`'} | {what} |")
    return "\n".join(lines) + "\n"
