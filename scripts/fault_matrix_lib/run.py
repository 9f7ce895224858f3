"""Runs one cell: a job under ruedarun, the fault, and the verdicts.

Verdicts (docs/reliability.md): (a) every rank ends before the deadline; (b) the target is named, by the survivors and by the
launcher; (c) no result is wrong; (d) nothing is left within ten seconds: no process, shared memory, socket or file; (e) the
exit code is not 0 unless all went well; (f) who is merely slow is never called dead.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from fault_matrix_lib import links
from fault_matrix_lib.cells import FAULTS, MEMORY_GROUPS

SIZE = 3
DEADLINE = 60.0
LEFTOVER_LIMIT = 10.0
RANK = Path(__file__).with_name("rank.py")


class Outcome(NamedTuple):
    failures: list  # texts: which verdict, and why
    seconds: float
    news_ms: float  # from the fault to the last survivor's error; -1: none
    output: str


def processes_of(canary):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path("/proc", name, "environ").read_bytes()
                state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if canary.encode() in environment and state != "Z":
                found.append(int(name))
    return found


def kill_all(canary):
    for pid in processes_of(canary):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def agent_of(driver):
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == driver:
                return int(name)
    return None


def make_memory_group(canary):
    group = Path(MEMORY_GROUPS, f"rueda-matrix-{canary}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    return group


def read_reports(folder, name):
    reports = {}
    for rank in range(SIZE):
        try:
            reports[rank] = json.loads(Path(folder, f"{name}.{rank}").read_text())
        except (OSError, ValueError):
            continue
    return reports


def run_cell(cell, seed, ruedarun):
    """The Outcome of one run. Everything random comes from the seed."""
    chance = random.Random(f"{cell}/{seed}")
    canary = uuid.uuid4().hex
    folder = tempfile.mkdtemp(prefix="test-of-rueda-matrix-")
    target = 0 if cell.target == "coordinator" else chance.randrange(1, SIZE)
    plan = {
        "fault": cell.fault, "phase": cell.phase, "transport": cell.transport, "target_rank": target, "folder": folder,
        "seed": chance.randrange(1 << 30), "steps": 6,
    }
    group = None
    if cell.fault == "oom_kill":
        group = make_memory_group(canary)
        plan["memory_group"] = str(group)
    environment = dict(
        os.environ, MATRIX_CELL=json.dumps(plan), MATRIX_CANARY=canary, RUEDA_DEAD_SECONDS="3", RUEDA_NAME_SLOW_RANKS="0",
        RUEDA_START_TIMEOUT="40", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
    )
    if cell.transport == "tcp":
        environment["RUEDA_TRANSPORT"] = "tcp"
    output = Path(folder, "output")
    started = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            command, network = [sys.executable, str(RANK)], None
            if cell.fault in links.FAULTS:
                network = stack.enter_context(links.Network(cell, target, plan["seed"]))
                command = network.command(command)
                environment.update(network.environment())
            sink = stack.enter_context(open(output, "wb"))
            job = subprocess.Popen(
                [str(ruedarun), "-np", str(SIZE), "--grace-period", "10", *command],
                stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True,
            )
            code = follow(job, cell, folder, target, started, network)
        seconds = time.monotonic() - started
        text = output.read_text(errors="replace")
        failures = judge(cell, target, code, text, folder, network)
        failures += leftovers(canary)
        faults = read_reports(folder, "now")
        told = [r["at"] for r in read_reports(folder, "outcome").values() if r.get("outcome") == "raised"]
        news = (max(told) - faults[target]["at"]) * 1e3 if told and target in faults else -1.0
        return Outcome(failures, seconds, news, text)
    finally:
        kill_all(canary)
        if group is not None:
            remove_group(group)
        shutil.rmtree(folder, ignore_errors=True)


def remove_group(group):
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)  # the kernel lets go of the dead a moment later


def follow(job, cell, folder, target, started, network=None):
    """Waits for the end; suffers the job what is the launcher's to suffer. None: it did not end in time."""
    pending = network is not None or cell.fault in ("ctrl_c", "agent_killed")
    while time.monotonic() - started < DEADLINE:
        if pending and Path(folder, f"now.{target}").exists():
            pending = False
            if network is not None:
                network.break_link(time.monotonic())
            elif cell.fault == "ctrl_c":
                os.kill(job.pid, signal.SIGINT)
            elif (agent := agent_of(job.pid)) is not None:
                os.kill(agent, signal.SIGKILL)
        if network is not None:
            network.mend_if_due(time.monotonic())
        try:
            return job.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    job.kill()
    job.wait()
    return None


def judge(cell, target, code, text, folder, network=None):
    if code is None:
        return [f"(a) the job did not end within {DEADLINE:g} s"]
    kind = FAULTS[cell.fault]
    outcomes = read_reports(folder, "outcome")
    failures = [f"(c) rank {rank}: {r['text']}" for rank, r in outcomes.items() if r["outcome"] == "wrong"]
    finished = [rank for rank, r in outcomes.items() if r["outcome"] == "finished"]
    raised = {rank: r for rank, r in outcomes.items() if r["outcome"] == "raised"}
    others = [rank for rank in range(SIZE) if rank != target]
    # A fault at a random moment may come after the target's last step: then the job has ended well.
    if len(finished) != SIZE and not Path(folder, f"now.{target}").exists():
        failures.append("the job ended before the fault's moment came")
    too_late = kind in ("lost", "ends", "cut", "parted", "interrupted", "orphaned") and len(finished) == SIZE and code == 0
    in_init = cell.phase in ("rendezvous", "init")
    if kind == "fine" or too_late or (kind == "refused" and len(finished) == SIZE):
        if len(finished) != SIZE or code != 0:
            told = "".join(f"; rank {rank} was told: {report['text'][:300]}" for rank, report in raised.items())
            failures.append(f"(f) nobody was lost, but ranks {finished} finished and the exit code is {code}{told}")
    elif kind in ("lost", "ends"):
        for rank in others:
            if rank in finished:
                continue
            if rank not in raised:
                failures.append(f"(a) rank {rank} did not say what it was told")
            elif f"rank {target} " not in raised[rank]["text"] and f"rank {target}:" not in raised[rank]["text"]:
                failures.append(f"(b) rank {rank} was told: {raised[rank]['text'][:300]}")
        if f"rank {target} " not in "".join(line for line in text.splitlines(True) if line.startswith("ruedarun: ")):
            failures.append(f"(b) the launcher does not name rank {target}")
        if code == 0 and len(finished) < len(others):
            failures.append("(e) exit code 0 although ranks failed")
    elif kind == "refused":
        # The error has the amounts; the job ends with it. Only where init was under way.
        if not in_init:
            failures.append(f"(f) ranks {finished} finished of {SIZE}, exit code {code}")
        elif code == 0:
            failures.append("(e) exit code 0 although init failed")
        elif target in raised and not any(word in raised[target]["text"] for word in ("descriptor", "bytes", "memory", "limit", "open files")):
            failures.append(f"(b) no amounts: {raised[target]['text'][:300]}")
    elif kind == "parted":
        failures += network.judge_cut({rank: report["text"] for rank, report in raised.items()}, code, text)
    elif kind == "cut":
        for rank, report in raised.items():
            if "rank " not in report["text"]:
                failures.append(f"(b) rank {rank} was told: {report['text'][:300]}")
        if code == 0:
            failures.append("(e) exit code 0 although connections were lost")
    elif kind == "interrupted" and code != 130:
        failures.append(f"(e) exit code {code}, not 130")
    elif kind == "orphaned" and code == 0:
        failures.append("(e) exit code 0 although the agent was killed")
    return failures


def leftovers(canary):
    end = time.monotonic() + LEFTOVER_LIMIT
    while (left := processes_of(canary)) and time.monotonic() < end:
        time.sleep(0.05)
    failures = [f"(d) process {pid} is left" for pid in left]
    names = [name for name in os.listdir("/dev/shm") if name.startswith("rueda") and canary in name]
    return failures + [f"(d) /dev/shm/{name} is left" for name in names]
