"""From settings, wherever they were made, to what ruedarun is started with. Decides; starts nothing.

A setting is (dest, value, origin): the dest of `horovodrun_flags`, and the words that the user wrote
it with: a flag, a key of the configuration file, or an argument of `rueda.run`.
"""

import os
import re
import socket
from typing import Dict, List, NamedTuple

from rueda.compat import horovod_settings
from rueda.compat import horovodrun_flags as flags

_ONLY_WITH_MPI = ("binding_args", "mpi_args")
_MAKE_ELASTIC = ("min_num_proc", "host_discovery_script")
_ELASTIC = {  # dest: flag of ruedarun
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "host_discovery_script": "--host-discovery-script",
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}
# What Horovod does when a rank fails, and when new ranks may come.
_HOROVODS_POLICY = ("--on-failure", "blacklist", "--join", "announce")


class Refused(ValueError):
    """Wrong or unfulfillable settings; the message names each with its reason."""


class Setting(NamedTuple):
    value: object
    origin: str


class Plan(NamedTuple):
    options: List[str]  # of ruedarun, before the command
    environment: Dict[str, str]  # what is set for the ranks, on top of the user's environment
    notes: List[str]  # what the user should know


def make_plan(settings):
    """The `Plan` of a dict from dest to `Setting`; `Refused` lists everything that is wrong."""
    problems, notes, environment = [], [], {}
    for dest, setting in settings.items():
        flag = flags.flag_of(dest, setting.value)
        problem = _problem(flag, setting.value, {"hosts", "hostfile"} & settings.keys())
        if problem:
            problems.append(f"{setting.origin}: {problem}")
        elif flag.fate == flags.REFUSED:
            problems.append(f"{setting.origin}: {flag.meaning}")
        elif flag.fate == flags.NOTED:
            notes.append(f"{setting.origin} has no effect: {flag.meaning}")
        environment.update(_variables(flag, setting.value))
    problem = _hosts_problem(settings)
    if problem:
        problems.append(f"{settings['hostfile'].origin}: {problem}")
    if "num_proc" not in settings:
        problems.append("the number of ranks is missing: -np N")
    problems += _mpi_problems(settings)
    notes += _mpi_notes(settings) + _elastic_notes(settings)
    if problems:
        raise Refused("\n".join(problems))

    for switch, (zeroed, _) in horovod_settings.SWITCHES.items():
        if environment.get(switch) == "1":
            environment.update(dict.fromkeys(zeroed, "0"))
    if "use_mpi" not in settings:  # as Horovod: mpirun's ranks know their place from mpirun
        hosts = settings["hosts"].value if "hosts" in settings else ""
        if not is_elastic(settings):  # else a rank's host may be any
            environment["HOROVOD_HOSTNAME"] = re.split(r"[:,]", hosts)[0] if hosts else "localhost"
        environment["HOROVOD_CONTROLLER"] = environment["HOROVOD_CPU_OPERATIONS"] = "gloo"
    return Plan(_options(settings), environment, notes)


def ranks_environment(plan):
    """The environment that ruedarun is started with: ours and the plan's."""
    return {**os.environ, **plan.environment}


def is_elastic(settings):
    """Whether the ranks of the job may come and go."""
    return any(dest in settings for dest in _MAKE_ELASTIC)


def _elastic_options(settings):
    if not is_elastic(settings):
        return []
    options = []
    for dest in _effective(settings):
        value = settings[dest].value
        words = _two_numbers(value) if dest == "cooldown_range" else [value]
        options += [_ELASTIC[dest], *map(str, words)]
    return [*options, *_HOROVODS_POLICY]


def _effective(settings):
    """The dests of elastic jobs that are given and say something."""
    found = [dest for dest in _ELASTIC if dest in settings]
    if not is_elastic(settings):
        return []
    return [dest for dest in found if dest != "slots" or "host_discovery_script" in settings]


def _elastic_notes(settings):
    """Horovod ignores in silence what it is given beside."""
    unused = settings.keys() & {*_ELASTIC, "elastic_timeout"} - {*_effective(settings)}
    if is_elastic(settings):
        unused -= {"elastic_timeout"}
        why = "it is for hosts that a discovery script prints"
    else:
        why = "only a least number of ranks (--min-np) or a discovery script makes a job elastic"
    return [f"{settings[dest].origin} has no effect: {why}" for dest in sorted(unused)]


def _two_numbers(value):
    """MIN and MAX as the flag, the configuration file ("60 300") or `run` has them; None if they are not."""
    words = value.split() if isinstance(value, str) else value
    try:
        return [int(word) if isinstance(word, str) else word for word in words]
    except (TypeError, ValueError):
        return None


def pair_problem(value):
    """What is wrong with a cooldown, two numbers or a text of both; None: nothing."""
    numbers = _two_numbers(value)
    is_pair = numbers is not None and len(numbers) == 2
    if not is_pair or any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
        return f"expected two numbers, MIN and MAX, found {value!r}"
    if not 1 <= numbers[0] <= numbers[1] <= 3600:
        return f"expected 1 to 3600 seconds, MIN not above MAX, found {value!r}"
    return None


def _options(settings):
    value = {dest: setting.value for dest, setting in settings.items()}
    options = ["-np", str(value["num_proc"])]
    if value.get("hosts"):
        options += ["-H", value["hosts"]]
    if value.get("hostfile"):
        options += ["--hostfile", os.fspath(value["hostfile"])]
    options += _elastic_options(settings)
    if value.get("ssh_port"):
        options += ["--ssh-port", str(value["ssh_port"])]
    if value.get("ssh_identity_file"):
        options += ["--ssh-identity-file", value["ssh_identity_file"]]
    if value.get("nics"):
        options += ["--network-interfaces", ",".join(f"={name}" for name in sorted(value["nics"]))]
    if value.get("verbose"):
        options.append("--verbose")
    if value.get("output_filename"):
        options += ["--output-filename", value["output_filename"]]
    if value.get("prefix_output_with_timestamp"):
        options.append("--prefix-timestamp")
    if value.get("use_mpi"):
        options.append("--mpi")
        more = [value[dest] for dest in _ONLY_WITH_MPI if value.get(dest)]
        if more:
            options.append("--mpi-args=" + " ".join(more))
    return options


def _problem(flag, value, hosts):
    """What is wrong with a value, or None. hosts: the job may be over several."""
    takes = flag.takes
    if takes in (flags.ON, flags.OFF) and not isinstance(value, bool):
        return f"expected true or false, found {value!r}"
    if takes is int and (isinstance(value, bool) or not isinstance(value, int)):
        return f"expected a whole number, found {value!r}"
    if takes is float and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return f"expected a number, found {value!r}"
    if takes == flags.PAIR:
        return pair_problem(value)
    if takes is str and (not isinstance(value, str) or not value):
        return f"expected text, found {value!r}"
    if "positive" in flag.checks and not value > 0:
        return f"expected 1 or more, found {value}"
    if "not negative" in flag.checks and not value >= 0:
        return f"expected 0 or more, found {value}"
    if "0 to 1" in flag.checks and not 0 <= value <= 1:
        return f"expected 0 to 1, found {value}"
    if flag.choices and value.upper() not in flag.choices:
        return f"expected one of {', '.join(flag.choices)}, found {value!r}"
    if flag.dest == "nics" and not hosts:
        there = [name for _, name in socket.if_nameindex()]
        absent = sorted(set(value) - set(there))
        if absent:
            return f"this machine has no interface {', '.join(absent)}; it has {', '.join(there)}"
    return None


def _variables(flag, value):
    """The variables that a setting becomes: Horovod's, for programs that read it, and rueda's."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if flag.dest == "nics":
        text = ",".join(sorted(value))
    found = {flag.variable: text} if flag.variable else {}
    setting = horovod_settings.DESTS.get(flag.dest)
    if setting is None or not setting.own:
        return found
    if setting.values and isinstance(value, bool):
        text = setting.values[0 if value else 1]
    elif setting.factor != 1 and isinstance(value, int):
        text = str(value * setting.factor)
    if text is not None:
        found[setting.own] = text
        if setting.variable:
            found[setting.variable] = text
    return found


def _mpi_problems(settings):
    if "use_mpi" in settings and "tcp_flag" in settings:
        tcp, mpi = settings["tcp_flag"].origin, settings["use_mpi"].origin
        return [f"{tcp}: {mpi} asks for MPI instead; for MPI over TCP: --mpi-args='--mca btl self,vader,tcp'"]
    return []


def _mpi_notes(settings):
    if "use_mpi" in settings:
        return []
    unused = [settings[dest].origin for dest in _ONLY_WITH_MPI if dest in settings]
    return [f"{origin} has no effect: it is for mpirun, which only --mpi asks for" for origin in unused]


def _hosts_problem(settings):
    """What is wrong with the host file that can be seen from here, or None; ruedarun reads it."""
    if "hostfile" not in settings:
        return None
    path = settings["hostfile"].value
    try:
        with open(path, "rb"):
            return None
    except OSError as error:
        return f"cannot read the host file {os.fspath(path)}: {error}"
