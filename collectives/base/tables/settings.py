"""Every setting of rueda, once, as data.

From these rows scripts/generate_tables.py makes the struct Config and the table behind it
(collectives/base), the flags of ruedarun and the keys of its configuration file that set variables
(launcher), what horovodrun needs (bindings/python/rueda/compat) and the tables of docs/settings.md.
README.md beside this file says how to add one. Plain Python 3.9; nothing is imported but typing.
"""

from typing import NamedTuple, Optional, Tuple, Union

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Allowed(NamedTuple):
    """Which values a setting takes, besides those that its type cannot hold."""

    check: str  # an enumerator of config.cc's Check
    expected: str = ""  # how an error names what is accepted
    least: float = 0
    most: float = 0
    words: Tuple[str, ...] = ()


ANY = Allowed("kAny")
POSITIVE = Allowed("kPositive", "a number greater than 0")
SECONDS = Allowed("kPositive", "a number greater than 0, at most 1000000000", most=1000000000)  # clocks hold nanoseconds
NOT_NEGATIVE = Allowed("kNotNegative", "a number that is not negative")


def between(least, most, unit=""):
    return Allowed("kRange", f"{least} to {most}" + (unit and f" {unit}"), least, most)


def power_of_two(least, most):
    return Allowed("kPowerOfTwo", f"a power of two from {least} to {most}", least, most)


def one_of(*words):
    return Allowed("kWord", f"{', '.join(words[:-1])} or {words[-1]}", words=words)


def one_of_in_any_case(*words):
    return one_of(*words)._replace(check="kWordInAnyCase")


class Setting(NamedTuple):
    name: str  # the environment variable
    field: str  # of struct Config
    default: Union[int, float, bool, str]  # its type is the setting's; a bool is written 0 or 1
    section: str  # of docs/settings.md
    meaning: str
    unit: str = ""
    allowed: Allowed = ANY
    agreed: bool = False  # must be equal on all ranks: init compares
    horovod: str = ""  # Horovod's variable of the same meaning, read where ours is not set
    differs: str = ""  # what a user of Horovod's should know besides


_START, _BATCHES, _BYTES = "Starting and ending", "Batches", "How bytes move"
_HOSTS, _FAILURES, _TELLS = "Between hosts", "Failures and hangs", "What it tells"
_GPU, _ATTENTION, _ELASTIC = "GPU tensors", "Attention", "Elastic jobs"

# In the order of ruedarun --print-config.
SETTINGS = (
    Setting("RUEDA_FUSION_THRESHOLD", "fusion_threshold_bytes", 64 * MIB, _BATCHES,
        "bytes of the largest batch of small tensors; 0 fuses nothing",
        unit="bytes", allowed=NOT_NEGATIVE, agreed=True, horovod="HOROVOD_FUSION_THRESHOLD"),
    Setting("RUEDA_BUCKET_BYTES", "bucket_bytes", 8 * MIB, _BATCHES,
        "bytes of the largest batch that is learnt from step to step (the first of a step: 1 MB); "
        "large enough that latency is below a tenth of the transfer, small enough to start early",
        unit="bytes", allowed=POSITIVE, agreed=True),
    Setting("RUEDA_GPU_BUCKET_BYTES", "gpu_bucket_bytes", 24 * MIB, _BATCHES,
        "the same of GPU tensors",
        unit="bytes", allowed=POSITIVE, agreed=True),
    Setting("RUEDA_CHUNK_BYTES", "chunk_bytes", 256 * KIB, _BYTES,
        "bytes of one staging buffer of the shared-memory pipeline (a power of two, 4096 to 16777216)",
        unit="bytes", allowed=power_of_two(4 * KIB, 16 * MIB), agreed=True),
    Setting("RUEDA_STAGING_BUFFERS", "staging_buffers", 4, _BYTES,
        "staging buffers per rank in the shared-memory pipeline",
        unit="buffers", allowed=between(1, 64), agreed=True),
    Setting("RUEDA_CACHE_CAPACITY", "cache_capacity", 16384, _BATCHES,
        "tensors the response cache remembers; 0 switches it off",
        unit="tensors", allowed=NOT_NEGATIVE, agreed=True, horovod="HOROVOD_CACHE_CAPACITY"),
    Setting("RUEDA_SHM_PROTOCOL", "shm_protocol", "auto", _BYTES,
        "how allreduce, allgather and alltoall move large tensors inside a host: "
        "staged, cma (where possible), or auto, which measures both",
        allowed=one_of("auto", "staged", "cma"), agreed=True),
    Setting("RUEDA_HOST_COMPRESSION", "host_compression", "none", _HOSTS,
        "how float32 sums travel between hosts: none (as they are), bf16 or fp16 (half the bytes)",
        allowed=one_of("none", "bf16", "fp16"), agreed=True),
    Setting("RUEDA_HOST_EXCHANGE", "host_exchange", "auto", _HOSTS,
        "how hosts add up: auto, by size and number of hosts; direct (everybody sends everything), "
        "bruck (passed on in log2 H rounds) or reduce-scatter (shards, then an allgather of their "
        "sums), for all sizes",
        allowed=one_of("auto", "direct", "bruck", "reduce-scatter"), agreed=True),
    Setting("RUEDA_FUSION_HOLD_SECONDS", "fusion_hold_seconds", 0.005, _BATCHES,
        "how long a batch waits for its usual members after the last one arrived",
        unit="seconds", allowed=NOT_NEGATIVE),
    Setting("RUEDA_STALL_CHECK_TIME_SECONDS", "stall_check_seconds", 60.0, _FAILURES,
        "warn about a tensor that some ranks have not submitted for this long; 0 never warns",
        unit="seconds", allowed=NOT_NEGATIVE, horovod="HOROVOD_STALL_CHECK_TIME_SECONDS"),
    Setting("RUEDA_STALL_SHUTDOWN_TIME_SECONDS", "stall_shutdown_seconds", 0.0, _FAILURES,
        "fail such a tensor on all ranks after this long; 0 never does",
        unit="seconds", allowed=NOT_NEGATIVE, horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    Setting("RUEDA_STALL_POLICY", "stall_policy", "warn", _FAILURES,
        "what comes with that warning: warn, nothing; dump, the flight recorders' files; abort, "
        "these, and the tensor fails on all ranks",
        allowed=one_of("warn", "dump", "abort")),
    Setting("RUEDA_FLIGHT_RECORDER", "flight_folder", "", _FAILURES,
        "folder for what the ranks did last, written when one fails (rueda explain reads it)"),
    Setting("RUEDA_PLAN_PATIENCE", "plan_patience_seconds", 1.0, _BATCHES,
        "how long a step plan may stand still before the ranks negotiate again and name who is "
        "late",
        unit="seconds", allowed=SECONDS),
    Setting("RUEDA_HOROVOD_STRICT", "horovod_strict", False, _FAILURES,
        "1: the errors that Horovod raises and rueda need not: for collectives but allreduce while "
        "a rank has joined, and for a name whose handle has not been synchronized yet",
        agreed=True),
    Setting("RUEDA_C10D", "c10d", False, _START,
        "1: programs that ask torch.distributed for gloo, or for nothing, get rueda for CPU tensors",
        agreed=True),
    Setting("RUEDA_START_TIMEOUT", "start_timeout_seconds", 120.0, _START,
        "seconds that init waits for the other ranks",
        unit="seconds", allowed=SECONDS, horovod="HOROVOD_START_TIMEOUT"),
    Setting("RUEDA_ELASTIC_TIMEOUT", "elastic_timeout_seconds", 600.0, _ELASTIC,
        "seconds that an elastic job with fewer than --min-np ranks waits for more, then it ends with "
        "exit code 124",
        unit="seconds", allowed=SECONDS, horovod="HOROVOD_ELASTIC_TIMEOUT"),
    Setting("RUEDA_DISCOVERY_INTERVAL", "discovery_interval_seconds", 1.0, _ELASTIC,
        "seconds between two runs of --host-discovery-script",
        unit="seconds", allowed=SECONDS),
    Setting("RUEDA_SHUTDOWN_TIMEOUT", "shutdown_timeout_seconds", 5.0, _START,
        "seconds that shutdown waits for collectives that have begun",
        unit="seconds", allowed=SECONDS),
    Setting("RUEDA_DEAD_SECONDS", "dead_seconds", 5.0, _FAILURES,
        "how long a rank may be stopped (SIGSTOP) before it counts as dead and is killed (0.5 to "
        "600)",
        unit="seconds", allowed=between(0.5, 600, "seconds")),
    Setting("RUEDA_PREEMPTION_SIGNAL", "preemption_signal", "SIGTERM,SIGUSR1", _FAILURES,
        "signals that make should_stop() true on all ranks, from its first call on; none: no "
        "signal does"),
    Setting("RUEDA_CRASH_HANDLERS", "crash_handlers", True, _FAILURES,
        "0: no signal handlers that tell of a crash before its core dump is written"),
    Setting("RUEDA_TRANSPORT", "transport", "auto", _BYTES,
        "auto: shared memory inside a host and tcp between hosts; tcp: tcp everywhere; mpi: shared "
        "memory inside a host and MPI between hosts; mpi-only: MPI everywhere",
        allowed=one_of("auto", "tcp", "mpi", "mpi-only"), agreed=True),
    Setting("RUEDA_MPI_CHUNK_BYTES", "mpi_chunk_bytes", 256 * KIB, _BYTES,
        "bytes of one message of the MPI transport, at most 1073741824",
        unit="bytes", allowed=between(1, GIB)),
    Setting("RUEDA_CUDA_DRIVER", "cuda_driver", "", _GPU,
        "file of the CUDA driver, opened with the first GPU tensor; empty: libcuda.so.1"),
    Setting("RUEDA_NCCL_LIBRARY", "nccl_library", "", _GPU,
        "file of NCCL; empty: the copy that the process has loaded, else pip's, else the system's"),
    Setting("RUEDA_NCCL_REGISTER", "nccl_register", "windows", _GPU,
        "how NCCL is told of GPU memory that is used again: windows (symmetric ones, NCCL 2.27, where all "
        "ranks have the memory), local (ncclCommRegister, 2.19) or none",
        allowed=one_of("windows", "local", "none")),
    Setting("RUEDA_CUDA_KERNELS", "cuda_kernels", "", _GPU,
        "file of rueda's CUDA kernels; empty: librueda_cuda.so beside librueda.so, if it is there; "
        "none: without"),
    Setting("RUEDA_ALLOW_SHARED_GPU", "allow_shared_gpu", False, _GPU,
        "1 on all ranks: any number of ranks may use one GPU (tests; NCCL must allow it too)"),
    Setting("RUEDA_RANKS_PER_GPU", "ranks_per_gpu", 1, _GPU,
        "how many ranks may use one GPU; more are an error that names them",
        unit="ranks", allowed=between(1, 1024)),
    Setting("RUEDA_HOST_ID", "host_id", "", _START,
        "overrides this host's identity, so that ranks of one machine count as separate hosts"),
    Setting("RUEDA_TCP_ADDRESS", "tcp_address", "", _HOSTS,
        "IPv4 or IPv6 address that the tcp transport listens on; empty is 127.0.0.1"),
    Setting("RUEDA_TCP_STREAMS", "tcp_streams", 1, _HOSTS,
        "TCP connections between two ranks of different hosts, 1 to 16: more than one where a "
        "network limits each connection",
        unit="connections", allowed=between(1, 16), agreed=True),
    Setting("RUEDA_TCP_RATE_LIMIT", "tcp_rate_limit", 0, _HOSTS,
        "bytes per second that each connection between hosts sends at most, paced by the kernel; "
        "0: no limit",
        unit="bytes per second", allowed=NOT_NEGATIVE),
    Setting("RUEDA_RENDEZVOUS", "rendezvous", "", _START,
        "host:port where rank 0 waits for the others when another launcher than ruedarun started "
        "them; empty: within a host nothing is needed, else it follows from the launcher's "
        "variables"),
    Setting("RUEDA_KEY_FILE", "key_file", "", _START,
        "file with the job's key, the same on all hosts and for nobody else to read; needed when "
        "another launcher than ruedarun starts ranks on several hosts, or ruedarun itself is started "
        "on each of several nodes (PET_NNODES)"),
    Setting("RUEDA_HEAP_BYTES", "heap_bytes", 0, _BYTES,
        "most bytes of tensors in shared memory (rueda_alloc) per process; 0: as large as this "
        "host's memory or the process's cgroup limit",
        unit="bytes", allowed=NOT_NEGATIVE),
    Setting("RUEDA_TIMELINE", "timeline", "", _TELLS,
        "file of the timeline (Chrome JSON; for a name that ends in .pftrace or .perfetto-trace, "
        "and .gz behind it if it shall be compressed, Perfetto's packets); with {rank} in its name "
        "every rank writes one, else rank 0. DYNAMIC: none until start_timeline",
        horovod="HOROVOD_TIMELINE", differs="it needs no variable here"),
    Setting("RUEDA_TIMELINE_MARK_CYCLES", "timeline_mark_cycles", False, _TELLS,
        "1: the timeline marks the rounds in which something begins",
        horovod="HOROVOD_TIMELINE_MARK_CYCLES", differs="there is no cycle time"),
    Setting("RUEDA_TIMELINE_ALL_RANKS", "timeline_all_ranks", False, _TELLS,
        '1: every rank writes a timeline, on one clock, "rank<N>" in its name'),
    Setting("RUEDA_TIMELINE_SECONDS", "timeline_seconds", 0.0, _TELLS,
        "the timeline keeps what ended in its last seconds, so many, and at most as much again "
        "while it is written; 0: everything",
        unit="seconds", allowed=NOT_NEGATIVE),
    Setting("RUEDA_SUMMARY", "summary", False, _TELLS,
        "1: ranks count what the launcher's --summary prints"),
    Setting("RUEDA_METRICS", "metrics", "", _TELLS,
        "[ADDRESS:]PORT where the launcher's agent on each host serves /metrics and /healthz of its ranks; "
        "without an address 127.0.0.1; port 0: any, which is printed"),
    Setting("RUEDA_METRICS_ALL", "metrics_all", False, _TELLS,
        "1: there the ranks of all hosts, from where ruedarun runs, and nothing on the others"),
    Setting("RUEDA_METRICS_FILE", "metrics_file", "", _TELLS,
        "file that each host's metrics are written to every five seconds, for node_exporter's textfile collector "
        "(NAME.prom)"),
    Setting("RUEDA_NAME_SLOW_RANKS", "name_slow_ranks", True, _TELLS,
        "1: warn, once per job and rank, about a rank that has cost the others a tenth of the last ten "
        "seconds"),
    Setting("RUEDA_LOG_LEVEL", "log_level", "warning", _TELLS,
        "trace, debug, info, warning, error or fatal",
        allowed=one_of_in_any_case("trace", "debug", "info", "warning", "error", "fatal"),
        horovod="HOROVOD_LOG_LEVEL", differs="messages go to stderr at every level"),
    Setting("RUEDA_LOG_HIDE_TIME", "log_hide_time", False, _TELLS,
        "1: log messages do not begin with the time",
        horovod="HOROVOD_LOG_HIDE_TIME"),
    Setting("RUEDA_AUTOTUNE", "autotune", False, _TELLS,
        "1: rank 0 says why nothing is tuned (docs/benchmarks.md)",
        horovod="HOROVOD_AUTOTUNE", differs="no setting gained 5 % over the defaults, so nothing is tuned"),
    Setting("RUEDA_SIMD_TARGET", "simd_target", "", _BYTES,
        "instruction set of the kernels by name; empty takes the best this CPU has"),
    Setting("RUEDA_ATTENTION_KERNEL", "attention_kernel", "auto", _ATTENTION,
        "local kernel of attention by name; auto: of highest priority for the dtypes; measured: "
        "the fastest"),
    Setting("RUEDA_CHECK_PROGRAMS", "check_programs", False, _ATTENTION,
        "1: before a plan of attention runs for the first time each rank proves that the programs of all ranks fit "
        "together"),
)


class Renamed(NamedTuple):
    """A name that a setting had once: refused, so that nobody believes that it still works."""

    name: str
    now: str
    values: str = ""  # what became of its values


RENAMED = (
    Renamed("RUEDA_ROAD", "RUEDA_SHM_PROTOCOL",
        "with the values auto, staged (was windows) and cma (was pull)"),
    Renamed("RUEDA_WINDOWS", "RUEDA_STAGING_BUFFERS"),
)


class Switch(NamedTuple):
    """A variable of Horovod's: 1 makes settings of ours 0, before their own HOROVOD_ variables."""

    horovod: str
    zeroes: Tuple[str, ...]
    meaning: str
    dest: str  # of horovodrun
    key: str  # of the configuration file; it says the opposite


SWITCHES = (
    Switch("HOROVOD_STALL_CHECK_DISABLE",
        ("RUEDA_STALL_CHECK_TIME_SECONDS", "RUEDA_STALL_SHUTDOWN_TIME_SECONDS"),
        "1: neither warn about stalls nor fail them (both times are 0)",
        dest="no_stall_check", key="stall_check.enabled"),
)

# What a flag takes: a value of its setting's type; MiB of a setting in bytes; nothing.
VALUE, MEBIBYTES, SWITCH = "value", "mebibytes", "switch"


class Flag(NamedTuple):
    """A flag of ruedarun that sets a variable for every rank."""

    spellings: Tuple[str, ...]  # the first is what --print-config calls it
    setting: str  # "": sets nothing
    takes: str = VALUE
    help: str = "{}"  # of ruedarun; {}: the setting's name
    before: Tuple[str, ...] = ()  # spellings that --help shows before these
    off: Tuple[str, ...] = ()  # of a switch: spellings that mean the opposite
    on_off: Tuple[Optional[str], Optional[str]] = ("1", "0")  # of a switch: what either sets
    excludes: str = ""  # another of these flags
    dest: str = ""  # Horovod's name for what it sets: horovodrun has such a flag, too
    key: str = ""  # of the configuration file
    overrules: str = ""  # a key of the configuration file that then has no say


# In the order of ruedarun --help.
FLAGS = (
    Flag(("--timeline-filename",), "RUEDA_TIMELINE",
        before=("--timeline",), dest="timeline_filename", key="timeline.filename"),
    Flag(("--timeline-all-ranks",), "RUEDA_TIMELINE_ALL_RANKS", SWITCH,
        "{}=1: one file of all ranks, on one clock", on_off=("1", None)),
    Flag(("--timeline-seconds",), "RUEDA_TIMELINE_SECONDS"),
    Flag(("--timeline-mark-cycles",), "RUEDA_TIMELINE_MARK_CYCLES", SWITCH,
        off=("--no-timeline-mark-cycles",),
        dest="timeline_mark_cycles", key="timeline.mark_cycles"),
    Flag(("--summary",), "RUEDA_SUMMARY", SWITCH,
        "print one screen at the end: where the time went", on_off=("1", None)),
    Flag(("--metrics",), "RUEDA_METRICS",
        help="[ADDRESS:]PORT: {}, where Prometheus finds each host's ranks"),
    Flag(("--metrics-all",), "RUEDA_METRICS_ALL", SWITCH,
        "{}=1: there those of all hosts, at ruedarun's", on_off=("1", None)),
    Flag(("--metrics-file",), "RUEDA_METRICS_FILE",
        help="FILE: {}, for node_exporter"),
    Flag(("--flight-recorder",), "RUEDA_FLIGHT_RECORDER",
        help="FOLDER: {}, what the ranks did last if one fails"),
    Flag(("--autotune",), "RUEDA_AUTOTUNE", SWITCH,
        "{}=1: say why nothing is tuned", off=("--no-autotune",), dest="autotune", key="autotune.enabled"),
    Flag(("--stall-policy",), "RUEDA_STALL_POLICY",
        help="{}: warn, dump or abort"),
    Flag(("--log-level",), "RUEDA_LOG_LEVEL",
        dest="log_level", key="logging.level"),
    Flag(("--log-with-timestamp", "--no-log-hide-timestamp"), "RUEDA_LOG_HIDE_TIME", SWITCH,
        off=("--log-without-timestamp", "--log-hide-timestamp"), on_off=("0", "1"),
        dest="log_with_timestamp", key="logging.with_timestamp"),
    Flag(("--ranks-per-gpu",), "RUEDA_RANKS_PER_GPU",
        help="N: {}, so that N ranks share each GPU; -np auto starts as many"),
    Flag(("--c10d",), "RUEDA_C10D", SWITCH,
        "torch.distributed uses rueda where a program says gloo, or nothing",
        on_off=("1", None)),
    Flag(("--tcp",), "RUEDA_TRANSPORT", SWITCH,
        "{}=tcp: no shared memory", on_off=("tcp", None), dest="tcp_flag"),
    Flag(("--fusion-threshold-mb",), "RUEDA_FUSION_THRESHOLD", MEBIBYTES,
        "{}, in MiB", dest="fusion_threshold_mb", key="params.fusion_threshold_mb"),
    Flag(("--cache-capacity",), "RUEDA_CACHE_CAPACITY",
        dest="cache_capacity", key="params.cache_capacity"),
    Flag(("--start-timeout",), "RUEDA_START_TIMEOUT",
        help="{}, in seconds", dest="start_timeout"),
    Flag(("--elastic-timeout",), "RUEDA_ELASTIC_TIMEOUT",
        help="{}, in seconds (600)", dest="elastic_timeout", key="elastic.timeout"),
    Flag(("--no-stall-check",), "RUEDA_STALL_CHECK_TIME_SECONDS", SWITCH,
        "{}=0", on_off=("0", None)),
    Flag(("--stall-check",), "", SWITCH,
        "warn about stalls (default)", on_off=(None, None),
        excludes="--no-stall-check", overrules="stall_check.enabled"),
    Flag(("--stall-check-warning-time-seconds",), "RUEDA_STALL_CHECK_TIME_SECONDS",
        excludes="--no-stall-check",
        dest="stall_check_warning_time_seconds", key="stall_check.warning_time_seconds"),
    Flag(("--stall-check-shutdown-time-seconds",), "RUEDA_STALL_SHUTDOWN_TIME_SECONDS",
        dest="stall_check_shutdown_time_seconds", key="stall_check.shutdown_time_seconds"),
)

# Variables that are no settings: what a launcher gives each rank, and where files are.
OTHER_VARIABLES = (
    "RUEDA_RANK", "RUEDA_SIZE", "RUEDA_LOCAL_RANK", "RUEDA_LOCAL_SIZE", "RUEDA_CROSS_RANK",
    "RUEDA_CROSS_SIZE", "RUEDA_JOB_ID", "RUEDA_AGENT_FD", "RUEDA_KEY_FD", "RUEDA_LIFE_FDS",
    "RUEDA_FLIGHT_FD", "RUEDA_MEMBER", "RUEDA_ELASTIC", "RUEDA_LIBRARY", "RUEDA_RUEDARUN", "RUEDA_DEEPSPEED_CONFIG",
    "RUEDA_NVML_LIBRARY",
)

SETTING = {setting.name: setting for setting in SETTINGS}
