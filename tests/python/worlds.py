"""Runs test functions on several ranks, which are processes started by ruedarun.

A test marked ``@ranks(2, 3)`` runs on every rank of a world of that size, once per size. Tests of
one module and size share a world, because starting ranks costs seconds; the first one that fails ends
its world, and the rest get a new one. Modules that say ``WORLD = "torch"`` share the processes of their
worlds, too: each module has an ``init`` and ``shutdown`` of its own. `run_ranks` starts a world for one
function alone.

A rank reports through files, not through its output: one JSON line per finished test.
"""

import collections
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
import rueda
from expect import eventually

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_SECONDS = int(os.environ.get("RUEDA_TEST_TIMEOUT", "120"))

Outcome = collections.namedtuple("Outcome", "code output reports")
Outcome.__doc__ = """How a world ended: exit code of ruedarun, all output, and per rank a dict from
function name to {"result": ...} or {"error": text, "types": [names of the exception's classes]}."""


def ruedarun():
    """The launcher: RUEDA_RUEDARUN, else the imported package's own, else from PATH."""
    own = pathlib.Path(rueda.__file__).with_name("bin") / "ruedarun"
    found = os.environ.get("RUEDA_RUEDARUN") or (own if own.exists() else shutil.which("ruedarun"))
    if not found:
        pytest.fail("ruedarun not found: run scripts/quickstart, or set RUEDA_RUEDARUN")
    return str(found)


def launch(size, command, env=None, timeout=TIMEOUT_SECONDS, options=(), folder=None, progress=None):
    """Runs a command on ``size`` ranks; returns (exit code, output). A hang has the code None.

    progress: asked when the time is over; if it says something new, that much time begins again.
    """
    other = os.environ.get("RUEDA_TEST_LAUNCHER")  # "mpirun -np": options are ruedarun's alone
    start = [*shlex.split(other), str(size)] if other else [ruedarun(), "-np", str(size), *options]
    process = subprocess.Popen(
        [*start, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=folder,
        start_new_session=True,
    )
    seen = progress and progress()
    while True:
        try:
            output, _ = process.communicate(timeout=timeout)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            before, seen = seen, progress and progress()
            if before != seen:
                continue
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return None, f"{size} ranks did not end within {timeout} s; their output:\n{output}"


def run_world(size, tests, env=None, manual=False, options=()):
    """Runs functions, given as (file of the module, name), one after another, on every rank of one world.

    The reports' keys are such pairs.
    """
    with tempfile.TemporaryDirectory(prefix="test-of-rueda-") as folder:
        command = [sys.executable, HERE / "rank_main.py", folder, *(f"{file}::{name}" for file, name in tests)]
        paths = [pathlib.Path(folder, f"{rank}.jsonl") for rank in range(size)]
        env = {"RUEDA_TEST_MANUAL": "1" if manual else "", **(env or {})}
        code, output = launch(
            size,
            command,
            env,
            options=options,
            progress=lambda: [path.exists() and path.stat().st_size for path in paths],
        )
        reports = []
        for path in paths:
            lines = path.read_text().splitlines() if path.exists() else []
            reports.append({(line["file"], line["test"]): line for line in map(json.loads, lines)})
    return Outcome(code, output, reports)


def run_ranks(size, function, env=None, manual=False, options=()):
    """Runs one function on every rank of a world of its own and returns the `Outcome`.

    ``manual`` functions call init() and shutdown() themselves, and receive their rank from it.
    """
    outcome = run_world(size, [(function.__code__.co_filename, function.__name__)], env, manual, options)
    return outcome._replace(reports=[{name: line for (_, name), line in r.items()} for r in outcome.reports])


ENDS_OF = """
import contextlib, io, json, runpy, sys, traceback
for line in sys.argv[2:]:
    said, code = io.StringIO(), None
    sys.argv = [sys.argv[0], *line.split()]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(PROGRAM, run_name="__main__")
        except SystemExit as end:
            code = end.code
            print(code if isinstance(code, str) else "")
        except BaseException:
            traceback.print_exc()
    print("end", json.dumps([code, said.getvalue()]), flush=True)
"""


def ends_of(program, *lines):
    """(exit code, output) of a program for each line of arguments, one after another in one process, as PyTorch is loaded once.

    No exit code is what was not caught, or an ordinary end.
    """
    source = f"PROGRAM = {str(program)!r}\n{ENDS_OF}"
    code, output = launch(1, [sys.executable, "-c", source, program, *lines], options=["--no-prefix"])
    assert code == 0, output
    return [json.loads(line.split(" ", 1)[1]) for line in output.splitlines() if line.startswith("end ")]


def begin_early(request, name):
    """For an autouse fixture of a module: what a slow fixture starts runs beside the tests before those that ask for it."""
    if any(name in item.fixturenames for item in request.session.items if item.module is request.module):
        request.getfixturevalue(name)


def kill_once_all_are_here(victim):
    """For functions of `run_ranks`: rank ``victim`` kills itself when every rank has called this.

    Ranks meet in files, because a rank that has left a collective says nothing of the others: some may
    be in it still, and then it is that one which fails.
    """
    folder = pathlib.Path(sys.argv[1])  # of this world: see rank_main.py
    (folder / f"here.{rueda.rank()}").touch()
    if rueda.rank() == victim:
        eventually(lambda: len(list(folder.glob("here.*"))) == rueda.size())
        os.kill(os.getpid(), signal.SIGKILL)


def results(outcome):
    """What the one function of `run_ranks` returned on each rank; fails if any rank failed."""
    assert outcome.code == 0, outcome.output
    return [next(iter(report.values()))["result"] for report in outcome.reports]


def ranks(*sizes, slow=()):
    """Makes a test run on every rank of worlds of these sizes; of those in ``slow`` with scripts/test --all."""

    def decorate(body):
        @pytest.mark.parametrize("size", [*sizes, *(pytest.param(size, marks=pytest.mark.slow) for size in slow)])
        def test(size, shared_worlds):
            shared_worlds.check(body, size)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        test.__module__ = body.__module__
        test.body = body
        return test

    return decorate


def world_of(body):
    """What tests in one world have in common: the module's WORLD, or its file."""
    return body.__globals__.get("WORLD", body.__code__.co_filename)


def test_of(body):
    return body.__code__.co_filename, body.__name__


def seconds_of(reported):
    """The test's own, on its slowest rank."""
    return max(report["seconds"] for report in reported)


class SharedWorlds:
    """Starts worlds for `ranks` tests as needed and remembers what their ranks reported."""

    def __init__(self, items):
        self._wanted = collections.defaultdict(list)  # (world, size): (file, name) in order
        for item in items:
            body = getattr(getattr(item, "function", None), "body", None)
            if body and not any(mark.args[0] for mark in item.iter_markers("skipif")):
                self._wanted[(world_of(body), item.callspec.params["size"])].append(test_of(body))
        self._reports = {}  # (size, (file, name)): (per rank report or None, output)
        self._elsewhere = {}  # the same: what its world took for others, of which this was the first

    def check(self, body, size):
        test = test_of(body)
        if (size, test) not in self._reports:
            wanted = self._wanted[(world_of(body), size)]
            missing = [other for other in wanted if (size, other) not in self._reports]
            missing = missing[missing.index(test) :]
            outcome = run_world(size, missing)
            for other in missing:
                reported = [report.get(other) for report in outcome.reports]
                self._reports[(size, other)] = (reported, outcome.output)
                if not all(reported):
                    break  # the world ended in this one; those behind it get another world
                if other != test:
                    self._elsewhere[(size, test)] = self._elsewhere.get((size, test), 0) + seconds_of(reported)
        reported, output = self._reports[(size, test)]
        problems = []
        for rank, report in enumerate(reported):
            if report is None:
                problems.append(f"rank {rank} did not finish")
            elif "error" in report:
                problems.append(f"rank {rank}:\n{report['trace']}")
        if problems:
            pytest.fail("\n".join(problems) + "\noutput of the ranks:\n" + output, pytrace=False)

    def seconds(self, body, size, waited):
        """What a test took that pytest has waited for so long: its own seconds, and with the first of a world its start."""
        key = size, test_of(body)
        reported, _ = self._reports.get(key, ([None], ""))
        if not all(reported):
            return waited
        return max(waited - self._elsewhere.get(key, 0), seconds_of(reported))
