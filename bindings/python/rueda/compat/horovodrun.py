"""The command ``horovodrun``: Horovod's command line, in front of ruedarun.

Reads the flags and the configuration file, decides (`launch_plan`), sets the environment, and
becomes ruedarun: signals, output and the exit code are ruedarun's from there on.
"""

import argparse
import os
import sys

import rueda_launcher
from rueda.compat import horovod, horovodrun_config
from rueda.compat import horovodrun_flags as flags
from rueda.compat.launch_plan import Refused, Setting, make_plan, ranks_environment

_DESCRIPTION = """\
Starts N ranks of a program on this machine, with the flags of Horovod's launcher.

  horovodrun -np 4 python train.py

Exit code: 0 if all ranks ended with 0; else the code of the first rank that failed
(128 + signal if it was killed); 2 for a wrong command line."""


class _Store(argparse.Action):
    """Keeps a value, and the words it was given with."""

    def __init__(self, takes=None, **keywords):
        self._takes = takes
        super().__init__(**keywords)

    def __call__(self, parser, namespace, values, option_string=None):
        if self._takes in flags.WITHOUT_VALUE:
            values = self._takes != flags.OFF
        elif self._takes == flags.NAMES:
            values = (getattr(namespace, self.dest) or set()) | set(values.split(","))
        setattr(namespace, self.dest, values)
        namespace.origins[self.dest] = option_string


def make_parser():
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [flags] command [arguments ...]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups, exclusive = {}, {}
    for flag in flags.FLAGS:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        place = groups[flag.group]
        if flag.excludes:
            if flag.excludes not in exclusive:
                exclusive[flag.excludes] = place.add_mutually_exclusive_group()
            place = exclusive[flag.excludes]
        place.add_argument(*flag.spellings, action=_Store, **_how(flag))
    return parser


def _how(flag):
    """Keywords of add_argument for one row of the table."""
    fate = {flags.NOTED: "no effect: ", flags.REFUSED: "refused: ", flags.MET: "always so: "}
    plain = flag.takes == flags.ON and sum(f.dest == flag.dest for f in flags.FLAGS) == 1
    how = {"dest": flag.dest, "takes": flag.takes, "default": False if plain else None}
    how["help"] = (fate.get(flag.fate, "") + flag.meaning).replace("%", "%%")
    if flag.takes in flags.WITHOUT_VALUE:
        how["nargs"] = 0
    elif flag.takes == flags.PAIR:
        how.update(nargs=2, type=int, metavar=("MIN", "MAX"))
    else:
        how["type"] = flag.takes if flag.takes in (int, float) else str
        how["metavar"] = {int: "N", float: "X"}.get(flag.takes, "TEXT")
    if flag.choices:
        how.update(type=str.upper, choices=flag.choices, metavar="LEVEL")
    return how


def _find(word):
    """The row of a flag as written, shortened perhaps; None when there is none or several."""
    for flag in flags.FLAGS:
        if word in flag.spellings:
            return flag
    found = {
        flag
        for flag in flags.FLAGS
        if word.startswith("--") and any(name.startswith(word) for name in flag.spellings)
    }
    return found.pop() if len(found) == 1 else None


def split_command(arguments):
    """(flags, command). The command begins with the first word that is no flag and no flag's value.

    Cut before parsing, because argparse would take the command's own flags for shortened ones of
    ours.
    """
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return arguments[:at], arguments[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        at += 1
        flag = _find(word)
        if flag is not None and flag.takes not in flags.WITHOUT_VALUE:
            at += 2 if flag.takes == flags.PAIR else 1
    return arguments[:at], arguments[at:]


def parse_args(argv=None):
    """The command line as a namespace with Horovod's destinations and defaults.

    ``command`` is the list of what to run; ``settings`` holds what was given by flags and the
    configuration file, ``notes`` what is to be said about the file. `Refused` when the file is
    wrong; argparse exits on a wrong command line.
    """
    own, command = split_command(list(sys.argv[1:] if argv is None else argv))
    parsed = make_parser().parse_args(own, argparse.Namespace(origins={}))
    parsed.command = command
    given = {
        dest: Setting(getattr(parsed, dest), origin) for dest, origin in parsed.origins.items()
    }
    parsed.settings, parsed.notes = given, []
    if parsed.config_file:
        content = horovodrun_config.read(parsed.config_file)
        from_file, parsed.notes = horovodrun_config.settings_of(content, parsed.config_file)
        if given.keys() & {"use_gloo", "use_mpi", "use_jsrun"}:
            from_file.pop("use_gloo", None), from_file.pop("use_mpi", None)
        parsed.settings = {**from_file, **given}
        for dest, setting in from_file.items():
            if dest not in given:
                setattr(parsed, dest, setting.value)
    return parsed


def _import_horovod_as_rueda(environment):
    """Makes ``import horovod`` mean rueda in the ranks."""
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = horovod.path() + (os.pathsep + path if path else "")


def _become(options, environment):
    sys.stdout.flush()
    sys.stderr.flush()
    rueda_launcher.become(rueda_launcher.launcher(), options, environment)


def _fail(text):
    for line in text.splitlines():
        print(f"horovodrun: error: {line}", file=sys.stderr)
    print("horovodrun: horovodrun --help lists all flags", file=sys.stderr)
    sys.exit(rueda_launcher.USAGE_ERROR)


def run_commandline(argv=None):
    """``horovodrun`` itself: parses ``argv`` (default: the process's), becomes ruedarun."""
    try:
        parsed = parse_args(argv)
        if parsed.version:
            import rueda

            print(rueda.__version__)
            sys.exit(0)
        if parsed.check_build:
            # ruedarun asks the python3 on PATH which frameworks there are; it is to be this one.
            here = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
            _become(["--check-build"], {**os.environ, "PATH": here})
        plan = make_plan(parsed.settings)
        if not parsed.command:
            raise Refused("the command is missing: horovodrun -np N command")
    except Refused as refused:
        _fail(str(refused))
    for note in parsed.notes + plan.notes:
        print(f"horovodrun: note: {note}", file=sys.stderr)
    environment = ranks_environment(plan)
    _import_horovod_as_rueda(environment)
    _become([*plan.options, "--", *parsed.command], environment)


if __name__ == "__main__":
    run_commandline()
