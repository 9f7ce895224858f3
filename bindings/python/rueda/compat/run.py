"""``run``: a Python function on every rank of a job that is started for it (Horovod's horovod.run).

The function and its results travel as pickles through files in a folder that only this user can
enter, and that is removed at the end; no socket is opened. The job is ruedarun's, so it ends with
the caller, and a rank that fails is named.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings

import rueda_launcher
from rueda.common.exceptions import RankFailed
from rueda.compat import run_task, until_parent_ends
from rueda.compat.launch_plan import Refused, Setting, make_plan, ranks_environment

_LAUNCHER_SAYS = b"ruedarun: "
_CULPRIT = re.compile(r"rank (\d+) \(pid \d+[^)]*\) failed: (.*)")


def run(
    func,
    args=(),
    kwargs=None,
    num_proc=1,
    min_num_proc=None,
    max_num_proc=None,
    slots=None,
    reset_limit=None,
    cooldown_range=None,
    hosts=None,
    hostfile=None,
    host_discovery_script=None,
    start_timeout=None,
    ssh_port=None,
    ssh_identity_file=None,
    disable_cache=None,
    output_filename=None,
    verbose=None,
    use_gloo=None,
    use_mpi=None,
    mpi_args=None,
    network_interface=None,
    network_interfaces=None,
    executable=None,
    np=None,
    min_np=None,
    max_np=None,
):
    """Runs ``func(*args, **kwargs)`` on every rank of a new job and returns what the ranks returned.

    The ranks are new processes on this machine, with this process's environment, ``sys.path`` and
    working folder. Their output appears on ``sys.stdout`` and ``sys.stderr``, each line with its
    rank. The function, its arguments and its results must be picklable; with cloudpickle installed
    that includes what is defined in the main program or a notebook, lambdas and closures.

    Parameters
    ----------
    func : callable
    args : sequence
    kwargs : dict, optional
    num_proc : int
        Number of ranks; of an elastic job, to start with.
    min_num_proc : int, optional
        Fewest ranks that go on. The job is elastic: ranks may come and go (``rueda.elastic``).
    max_num_proc : int, optional
        Most ranks of an elastic job; default: as many as there are slots.
    host_discovery_script : str, optional
        Program that prints the hosts that may be used now, a line ``host`` or ``host:slots`` each; the
        job is elastic.
    slots : int, optional
        Slots of a host that the script prints without a number.
    reset_limit : int, optional
        Changes of the ranks after which an elastic job ends.
    cooldown_range : (int, int), optional
        Seconds, 1 to 3600, after which a blacklisted host may be used again; default: never.
    hosts, hostfile : str, optional
        As ``-H`` and ``-hostfile`` of horovodrun. Other hosts need a shared folder for temporary files
        (``TMPDIR``), through which the function and its results travel.
    start_timeout : int, optional
        Seconds that the ranks wait for each other in ``init``.
    output_filename : str, optional
        Folder for a copy of each rank's output.
    verbose : int or bool, optional
        Whether to say what is started and stopped.
    executable : str, optional
        The ranks' Python; default: this one.
    ssh_port, ssh_identity_file, network_interfaces
        As horovodrun's; without meaning on one host.
    disable_cache, use_gloo
        What they ask for is always so.
    use_mpi : bool, optional
        Whether Open MPI's mpirun starts the ranks, and MPI moves bytes between hosts.
    mpi_args : str, optional
        More arguments for mpirun.
    np, min_np, max_np, network_interface
        Deprecated names of num_proc, min_num_proc, max_num_proc, network_interfaces.

    Returns
    -------
    list
        What rank 0, 1, ... returned; of an elastic job, the first ``min_num_proc`` ranks of its end.

    Raises
    ------
    RankFailed
        A rank raised or was killed.
    ValueError
        An argument is wrong or asks for what rueda cannot do, or ``func`` cannot be pickled.
    """
    if not callable(func):
        raise ValueError(f"expected a function to run, found {func!r}")
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile: give one of them")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi: give one of them")
    num_proc = _renamed("np", np, "num_proc", num_proc, 1)
    given = {
        "num_proc": num_proc,
        "min_num_proc": _renamed("min_np", min_np, "min_num_proc", min_num_proc),
        "max_num_proc": _renamed("max_np", max_np, "max_num_proc", max_num_proc),
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "hosts": hosts,
        "hostfile": hostfile,
        "host_discovery_script": host_discovery_script,
        "start_timeout": start_timeout,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "disable_cache": bool(disable_cache) or None,
        "output_filename": output_filename,
        "verbose": bool(verbose) or None,
        "use_gloo": bool(use_gloo) or None,
        "use_mpi": bool(use_mpi) or None,
        "mpi_args": mpi_args,
        "nics": _interfaces(
            _renamed(
                "network_interface", network_interface, "network_interfaces", network_interfaces
            )
        ),
    }
    origins = {"nics": "network_interfaces"}
    settings = {
        dest: Setting(value, f"run({origins.get(dest, dest)}=...)")
        for dest, value in given.items()
        if value is not None
    }
    plan = make_plan(settings)
    for note in plan.notes:
        warnings.warn(note, stacklevel=2)
    task = _function_bytes(func, tuple(args), dict(kwargs or {}))
    with tempfile.TemporaryDirectory(prefix="rueda-run-") as folder:
        path = [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
        run_task.leave(
            os.path.join(folder, "path.json"), json.dumps([sys.prefix, path]).encode()
        )
        run_task.leave(os.path.join(folder, "function.pickle"), task)
        command = [executable or sys.executable, os.path.abspath(run_task.__file__), folder]
        code, says = _run_job([*plan.options, "--", *command], ranks_environment(plan))
        return _results(folder, given["min_num_proc"] or num_proc, code, says)


def _renamed(old, old_value, new, new_value, default=None):
    """The value of a parameter that has a deprecated name as well."""
    if old_value is None:
        return new_value
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=3)
    if new_value != default and new_value != old_value:
        raise ValueError(f"{old} and {new} are the same parameter: give {new} alone")
    return old_value


def _interfaces(names):
    """A list, or a string with commas, as a set."""
    if names is None:
        return None
    return set(names.split(",") if isinstance(names, str) else names)


def _function_bytes(func, args, kwargs):
    from rueda import _objects

    try:
        import cloudpickle  # noqa: F401

        hint = ""
    except ImportError:
        hint = "; with cloudpickle (pip install cloudpickle) more can be sent"
        if getattr(func, "__module__", None) == "__main__":
            raise ValueError(
                "a function of the main program can be sent to the ranks only with cloudpickle: "
                "pip install cloudpickle, or put the function into a module of its own"
            ) from None
    try:
        return _objects._pickle((func, args, kwargs))
    except Exception as error:
        raise ValueError(
            f"the function or its arguments cannot be sent to the ranks: {error}{hint}"
        ) from error


def _run_job(arguments, environment):
    """Runs ruedarun to its end: (exit code, what it said itself)."""
    guard = [sys.executable, "-I", "-S", os.path.abspath(until_parent_ends.__file__)]
    process = subprocess.Popen(
        [*guard, str(os.getpid()), rueda_launcher.launcher(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches it through us alone, also in a notebook
    )
    says = []
    relays = [
        threading.Thread(target=_relay, args=(process.stdout, sys.stdout, None), daemon=True),
        threading.Thread(target=_relay, args=(process.stderr, sys.stderr, says), daemon=True),
    ]
    for relay in relays:
        relay.start()
    try:
        code = process.wait()
    finally:
        while process.poll() is None:  # an exception, Ctrl-C most likely, has ended the wait
            process.send_signal(signal.SIGINT)
            try:
                process.wait()
            except KeyboardInterrupt:
                continue  # once more: ruedarun kills the ranks at once
        for relay in relays:
            relay.join()
        process.stdout.close()
        process.stderr.close()
    return code, says


def _relay(source, target, says):
    """Hands lines on until the end, also when ``target`` takes no more; ``says``: ruedarun's own."""
    for line in source:
        if says is not None and line.startswith(_LAUNCHER_SAYS):
            says.append(line[len(_LAUNCHER_SAYS) :].decode("utf-8", "replace").rstrip("\n"))
        try:
            target.write(line.decode("utf-8", "replace"))
            target.flush()
        except (OSError, ValueError, AttributeError):
            pass


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _results(folder, num_proc, code, says):
    """What the first num_proc ranks have returned; raises if one of them has nothing."""
    from rueda import _objects

    def outcome_of(rank):
        data = _read(os.path.join(folder, f"{rank}.pickle"))
        return (None, None) if data is None else _objects.pickle.loads(data)

    outcomes = [outcome_of(rank) for rank in range(num_proc)]
    failed = [rank for rank, (kind, _) in enumerate(outcomes) if kind != "result"]
    if code == 0 and not failed:
        return [value for _, value in outcomes]

    text = "\n".join(says)
    culprit = _CULPRIT.search(text)
    if culprit is None and len(failed) == num_proc and code != 0:
        refused = code in (rueda_launcher.USAGE_ERROR, 126, 127)  # no rank was started
        raise (Refused if refused else RuntimeError)(text or f"ruedarun ended with code {code}")
    rank = int(culprit.group(1)) if culprit else (failed or [0])[0]
    kind, error = outcome_of(rank)  # of an elastic job it may be one that has no result to give
    trace = _read(os.path.join(folder, f"{rank}.txt"))
    if trace is not None:
        trace = trace.decode("utf-8", "replace").rstrip()
        what = trace.splitlines()[-1]
    elif kind is None and code == 0:
        what = "ended without returning from the function"
    else:
        what = culprit.group(2) if culprit else f"failed; exit code {code}"
    if trace is not None:  # whose end stands in what ruedarun quotes
        says = [line for line in says if not line.startswith(("its last words", "  | "))]
    parts = [f"rank {rank} of {num_proc}: {what}", trace, "\n".join(says)]
    raise RankFailed("\n\n".join(filter(None, parts)), rank, code) from (
        error if kind == "error" else None
    )
