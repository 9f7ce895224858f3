"""Every flag of horovodrun, and what becomes of it here: the one table.

The parser, the configuration file, `rueda.run` and the page docs/horovodrun.md are made from it.
A flag is never accepted in silence and then forgotten; its ``fate`` is one of these:

=========  =======================================================================================
set        it sets something: a variable of the ranks, an option of ruedarun, or the launch itself
met        what it asks for is always so
noted      it tunes machinery that rueda does not have: the job runs, one line on stderr says why
refused    it asks for something that rueda cannot do: the job does not start
=========  =======================================================================================

What a flag sets that is a setting of rueda comes from the table of settings (`horovod_settings`).
"""

from typing import NamedTuple, Tuple

from rueda.compat import horovod_settings

SET, MET, NOTED, REFUSED = "set", "met", "noted", "refused"

# How a flag takes its value, besides int, float and str.
ON, OFF = "on", "off"  # no value: its dest becomes True, False
PAIR = "pair"  # two whole numbers, MIN and MAX
NAMES = "names"  # names with commas between; may be given again
ACTION = "action"  # prints something and exits
WITHOUT_VALUE = (ON, OFF, ACTION)


class Flag(NamedTuple):
    spellings: Tuple[str, ...]
    dest: str  # Horovod's name for what the flag sets
    takes: object
    fate: str
    meaning: str  # SET: what it does; else why it does nothing
    variable: str = ""  # what Horovod sets for the ranks; so do we, whatever the fate
    group: str = ""
    checks: Tuple[str, ...] = ()  # "not negative", "positive", "0 to 1"
    choices: Tuple[str, ...] = ()
    excludes: str = ""  # flags of the same word exclude each other
    own: str = ""  # rueda's variable of the same meaning


_BY_ITSELF = "rueda chooses by sizes and hosts"
_ONLY_WITH_AUTOTUNE = "nothing is tuned (docs/benchmarks.md)"


def _pair(name, dest, fate, why, excludes, variable=""):
    """``--name`` and ``--no-name``; the second asks for what is so anyway, unless the first works."""
    off = (SET, "do not (default)") if fate == SET else (MET, "nothing of the kind is ever done")
    return (
        Flag((f"--{name}",), dest, ON, fate, why, variable, excludes=excludes),
        Flag((f"--no-{name}",), dest, OFF, *off, variable, excludes=excludes),
    )


def _log_time(meaning, takes, *spellings):
    return tuple(
        Flag((name,), "log_with_timestamp", takes, SET, meaning, excludes="log time")
        for name in spellings
    )


def _group(name, *flags):
    return tuple(_with_setting(flag)._replace(group=name) for flag in flags)


def _with_setting(flag):
    """The row with what its dest sets, where that is a setting of rueda."""
    setting = horovod_settings.DESTS.get(flag.dest)
    if setting is None:
        return flag
    return flag._replace(
        variable=flag.variable or setting.variable,
        own=setting.own,
        checks=(setting.check,) if setting.check else (),
        choices=setting.choices,
    )


FLAGS = (
    *_group(
        "the job",
        Flag(("-np", "--num-proc"), "num_proc", int, SET, "number of ranks", checks=("positive",)),
        Flag(("--verbose",), "verbose", ON, SET, "say what is started and stopped"),
        Flag(
            ("--output-filename",),
            "output_filename",
            str,
            SET,
            "folder for a copy of each rank's output: rank.N/stdout and rank.N/stderr",
        ),
        Flag(
            ("-prefix-timestamp", "--prefix-output-with-timestamp"),
            "prefix_output_with_timestamp",
            ON,
            SET,
            "put the time before each line of output",
        ),
        Flag(
            ("--start-timeout",),
            "start_timeout",
            int,
            SET,
            "seconds that ranks wait for each other at the start",
        ),
        Flag(
            ("--config-file",),
            "config_file",
            str,
            SET,
            "YAML file with settings; a flag wins over the file",
        ),
    ),
    *_group(
        "questions (no ranks are started)",
        Flag(("-v", "--version"), "version", ACTION, SET, "print the version of rueda"),
        Flag(
            ("-cb", "--check-build"),
            "check_build",
            ACTION,
            SET,
            "print what rueda finds on this machine",
        ),
    ),
    *_group(
        "hosts",
        Flag(
            ("-H", "--hosts"),
            "hosts",
            str,
            SET,
            "name:slots,...; other hosts are reached by ssh, inside a job of Slurm by srun",
            excludes="hosts",
        ),
        Flag(
            ("-hostfile", "--hostfile"),
            "hostfile",
            str,
            SET,
            "file with a line per host: 'name slots=N', 'name:N' or 'name'",
            excludes="hosts",
        ),
        Flag(
            ("--host-discovery-script",),
            "host_discovery_script",
            str,
            SET,
            "program that prints the hosts of now, 'host' or 'host:slots' in a line; the job is elastic",
            excludes="hosts",
        ),
        Flag(
            ("--network-interfaces", "--network-interface"),
            "nics",
            NAMES,
            SET,
            "network interfaces that controller, agents and ranks may use between hosts",
            "NCCL_SOCKET_IFNAME",
        ),
        Flag(
            ("-p", "--ssh-port"),
            "ssh_port",
            int,
            SET,
            "port of sshd on the other hosts",
            checks=("positive",),
        ),
        Flag(
            ("-i", "--ssh-identity-file"),
            "ssh_identity_file",
            str,
            SET,
            "key file of ssh",
        ),
        Flag(
            ("--disable-cache",),
            "disable_cache",
            ON,
            MET,
            "nothing is remembered between runs",
        ),
    ),
    *_group(
        "controller",
        Flag(
            ("--gloo",),
            "use_gloo",
            ON,
            MET,
            "rueda's own transport takes Gloo's place",
            excludes="controller",
        ),
        Flag(
            ("--mpi",),
            "use_mpi",
            ON,
            SET,
            "Open MPI's mpirun starts the ranks, and MPI moves bytes between hosts",
            excludes="controller",
        ),
        Flag(
            ("--jsrun",),
            "use_jsrun",
            ON,
            REFUSED,
            "rueda does not start ranks through jsrun (LSF)",
            excludes="controller",
        ),
    ),
    *_group(
        "tuning",
        Flag(
            ("--fusion-threshold-mb",),
            "fusion_threshold_mb",
            int,
            SET,
            "MiB of the largest batch of small tensors; 0 fuses nothing",
        ),
        Flag(
            ("--cycle-time-ms",),
            "cycle_time_ms",
            float,
            NOTED,
            "rueda has no cycle: ranks are woken by tensors and by each other",
            "HOROVOD_CYCLE_TIME",
            checks=("not negative",),
        ),
        Flag(
            ("--cache-capacity",),
            "cache_capacity",
            int,
            SET,
            "tensors that the response cache remembers; 0 switches it off",
        ),
        *_pair(
            "hierarchical-allreduce",
            "hierarchical_allreduce",
            NOTED,
            _BY_ITSELF,
            "hierarchical allreduce",
            "HOROVOD_HIERARCHICAL_ALLREDUCE",
        ),
        *_pair(
            "hierarchical-allgather",
            "hierarchical_allgather",
            NOTED,
            _BY_ITSELF,
            "hierarchical allgather",
            "HOROVOD_HIERARCHICAL_ALLGATHER",
        ),
        *_pair(
            "torus-allreduce",
            "torus_allreduce",
            NOTED,
            _BY_ITSELF,
            "torus allreduce",
            "HOROVOD_TORUS_ALLREDUCE",
        ),
    ),
    *_group(
        "autotune",
        *_pair("autotune", "autotune", SET, "say in one line why nothing is tuned (docs/benchmarks.md)", "autotune"),
        Flag(
            ("--autotune-log-file",),
            "autotune_log_file",
            str,
            NOTED,
            _ONLY_WITH_AUTOTUNE + ", and no log is written",
        ),
        Flag(
            ("--autotune-warmup-samples",),
            "autotune_warmup_samples",
            int,
            NOTED,
            _ONLY_WITH_AUTOTUNE,
            checks=("not negative",),
        ),
        Flag(
            ("--autotune-steps-per-sample",),
            "autotune_steps_per_sample",
            int,
            NOTED,
            _ONLY_WITH_AUTOTUNE,
            checks=("not negative",),
        ),
        Flag(
            ("--autotune-bayes-opt-max-samples",),
            "autotune_bayes_opt_max_samples",
            int,
            NOTED,
            _ONLY_WITH_AUTOTUNE,
            checks=("not negative",),
        ),
        Flag(
            ("--autotune-gaussian-process-noise",),
            "autotune_gaussian_process_noise",
            float,
            NOTED,
            _ONLY_WITH_AUTOTUNE,
            checks=("0 to 1",),
        ),
    ),
    *_group(
        "elastic",
        Flag(
            ("--min-np", "--min-num-proc"),
            "min_num_proc",
            int,
            SET,
            "fewest ranks that go on; the job is elastic",
            checks=("positive",),
        ),
        Flag(
            ("--max-np", "--max-num-proc"),
            "max_num_proc",
            int,
            SET,
            "most ranks; without it as many as there are slots",
            checks=("positive",),
        ),
        Flag(
            ("--slots-per-host",),
            "slots",
            int,
            SET,
            "slots of a host that the discovery script prints without a number",
            checks=("positive",),
        ),
        Flag(
            ("--elastic-timeout",),
            "elastic_timeout",
            int,
            SET,
            "seconds that a job with too few ranks waits for more (600)",
        ),
        Flag(
            ("--reset-limit",),
            "reset_limit",
            int,
            SET,
            "changes of the ranks after which the job ends with exit code 75",
            checks=("not negative",),
        ),
        Flag(
            ("--blacklist-cooldown-range",),
            "cooldown_range",
            PAIR,
            SET,
            "seconds, 1 to 3600, after which a blacklisted host may be used again; without it never",
            checks=("1 to 3600",),
        ),
    ),
    *_group(
        "timeline",
        Flag(
            ("--timeline-filename",),
            "timeline_filename",
            str,
            SET,
            "file of the timeline (Chrome JSON)",
        ),
        *_pair(
            "timeline-mark-cycles",
            "timeline_mark_cycles",
            SET,
            "mark on the timeline the rounds in which something begins",
            "mark cycles",
        ),
    ),
    *_group(
        "stall check",
        Flag(
            ("--stall-check-warning-time-seconds",),
            "stall_check_warning_time_seconds",
            int,
            SET,
            "warn about a tensor that some ranks have not submitted for so long",
        ),
        Flag(
            ("--stall-check-shutdown-time-seconds",),
            "stall_check_shutdown_time_seconds",
            int,
            SET,
            "fail such a tensor on all ranks after so long; 0 never does",
        ),
        Flag(
            ("--no-stall-check",),
            "no_stall_check",
            ON,
            SET,
            "neither warn about stalls nor fail them",
            excludes="stall check",
        ),
        Flag(
            ("--stall-check",),
            "no_stall_check",
            OFF,
            MET,
            "stalls are warned about unless switched off",
            excludes="stall check",
        ),
    ),
    *_group(
        "libraries",
        Flag(
            ("--tcp",),
            "tcp_flag",
            ON,
            SET,
            "ranks talk over TCP only, not through shared memory",
            "NCCL_IB_DISABLE",
        ),
        *_pair(
            "mpi-threads-disable",
            "mpi_threads_disable",
            NOTED,
            "rueda calls MPI from one thread, and a program may have more",
            "mpi threads",
            "HOROVOD_MPI_THREADS_DISABLE",
        ),
        Flag(("--mpi-args",), "mpi_args", str, SET, "with --mpi: more arguments for mpirun"),
        Flag(("--binding-args",), "binding_args", str, SET, "with --mpi: how mpirun binds ranks"),
        Flag(
            ("--num-nccl-streams",),
            "num_nccl_streams",
            int,
            NOTED,
            "rueda does not use NCCL yet",
            "HOROVOD_NUM_NCCL_STREAMS",
            checks=("not negative",),
        ),
        Flag(
            ("--thread-affinity",),
            "thread_affinity",
            int,
            REFUSED,
            "rueda does not bind its thread to a core; use taskset or numactl in your command",
            checks=("not negative",),
        ),
        Flag(
            ("--gloo-timeout-seconds",),
            "gloo_timeout_seconds",
            int,
            NOTED,
            "Gloo is not used; see --start-timeout and --stall-check-shutdown-time-seconds",
            "HOROVOD_GLOO_TIMEOUT_SECONDS",
            checks=("not negative",),
        ),
    ),
    *_group(
        "logging",
        Flag(
            ("--log-level",),
            "log_level",
            str,
            SET,
            "least important messages that are printed",
        ),
        *_log_time(
            "messages have the time (default)", ON, "--log-with-timestamp", "--no-log-hide-timestamp"
        ),
        *_log_time("messages have no time", OFF, "--log-without-timestamp", "--log-hide-timestamp"),
    ),
)

# The configuration file: section, key, dest. "enabled" of stall_check is its dest's opposite.
FILE_KEYS = (
    *horovod_settings.FILE_KEYS,
    ("params", "cycle_time_ms", "cycle_time_ms"),
    ("elastic", "min_np", "min_num_proc"),
    ("elastic", "max_np", "max_num_proc"),
    ("elastic", "host_discovery_script", "host_discovery_script"),
    ("elastic", "slots_per_host", "slots"),
    ("elastic", "reset_limit", "reset_limit"),
    ("elastic", "blacklist_cooldown_range", "cooldown_range"),
    ("params", "hierarchical_allreduce", "hierarchical_allreduce"),
    ("params", "hierarchical_allgather", "hierarchical_allgather"),
    ("params", "torus_allreduce", "torus_allreduce"),
    ("autotune", "log_file", "autotune_log_file"),
    ("autotune", "warmup_samples", "autotune_warmup_samples"),
    ("autotune", "steps_per_sample", "autotune_steps_per_sample"),
    ("autotune", "bayes_opt_max_samples", "autotune_bayes_opt_max_samples"),
    ("autotune", "gaussian_process_noise", "autotune_gaussian_process_noise"),
    ("library_options", "mpi_threads_disable", "mpi_threads_disable"),
    ("library_options", "num_nccl_streams", "num_nccl_streams"),
    ("library_options", "thread_affinity", "thread_affinity"),
    ("library_options", "gloo_timeout_seconds", "gloo_timeout_seconds"),
)


def flag_of(dest, value) -> Flag:
    """The row that gives ``dest`` this value."""
    switch = {"True": ON, "False": OFF}.get(repr(value))
    rows = [flag for flag in FLAGS if flag.dest == dest]
    return next((flag for flag in rows if flag.takes == switch), rows[0])


def table():
    """The table as Markdown: what docs/horovodrun.md shows."""
    lines = ["| flag | here | what it does, or why it does nothing | variable of the ranks |"]
    lines.append("|---|---|---|---|")
    for flag in FLAGS:
        spellings = ", ".join(f"`{spelling}`" for spelling in flag.spellings)
        variable = f"`{flag.variable}`" if flag.variable else ""
        lines.append(f"| {spellings} | {flag.fate} | {flag.meaning} | {variable} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
