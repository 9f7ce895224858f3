"""One job of churn: starts it, does harm to its ranks while it trains, and looks at what is left."""

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

from churn_lib.judge import Harm, Log, judge
from fault_matrix_lib.remains import command_of, names, open_inodes, parent_of, sockets_of
from fault_matrix_lib.run import agent_of, kill_all, processes_of

RANK = Path(__file__).with_name("rank.py")
PATIENCE = 60.0  # seconds without a step: it hangs
LEFTOVER_LIMIT = 10.0
KINDS = ("kill", "stop_kill", "pause", "raise", "exit")
# What is said of such an end. Before a rank has its handlers, signals end it by themselves.
CAUSES = {
    "kill": ("SIGKILL",),
    "stop_kill": ("SIGKILL",),
    "pause": (),
    "raise": ("code 1", "SIGUSR1"),
    "exit": ("code 7", "SIGUSR2"),
}
POLICIES = ("replace", "replace", "shrink", "discovery")


class Report(NamedTuple):
    failures: list
    summary: str
    harms: int
    steps: int
    seconds: float
    folder: str  # with the logs; "" after success


class Hang(Exception):
    """No step within PATIENCE."""


class Plan:
    """What happens in the job of a seed."""

    def __init__(self, seed, kinds, harms):
        chance = self.chance = random.Random(seed)
        self.kinds = kinds
        self.ranks = chance.randint(2, 4)
        self.program = chance.choice(("plain", "torch"))
        self.policy = chance.choice(POLICIES)
        self.join = chance.choice(("ready", "ready", "announce"))
        self.size = chance.choice((64, 5000, 200_000))
        self.harms = chance.randint(1, harms)
        # A slot is given up when it has failed four times: there must be one more than are needed, and no two may be.
        self.min_np = chance.randint(1, self.ranks - 1) if self.policy == "replace" and self.harms < 8 else 1

    def __str__(self):
        return f"{self.ranks} ranks, {self.program} of {self.size}, {self.policy}, {self.join}, min-np {self.min_np}"


def is_alive(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    def __init__(self, plan, ruedarun):
        self.plan, self.chance = plan, plan.chance
        self.folder = Path(tempfile.mkdtemp(prefix="test-of-rueda-churn-"))
        (self.folder / "tmp").mkdir()
        self.canary = uuid.uuid4().hex
        self.before = names()
        self.harms, self.slots = [], plan.ranks
        self.sockets = set()
        self.output = self.folder / "output"
        command = [ruedarun, "-np", plan.ranks, "--min-np", plan.min_np, "--join", plan.join]
        if plan.policy == "discovery":
            self.offer(plan.ranks)
            command += ["--host-discovery-script", f"cat {self.folder}/hosts"]
        else:
            command += ["--on-failure", plan.policy]
        environment = dict(
            os.environ, CHURN_PLAN=json.dumps({"size": plan.size, "folder": str(self.folder), "program": plan.program}),
            MATRIX_CANARY=self.canary, TMPDIR=str(self.folder / "tmp"), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
            RUEDA_DISCOVERY_INTERVAL="0.2",
        )  # fmt: skip
        with open(self.output, "wb") as sink:
            self.process = subprocess.Popen(
                [*map(str, command), sys.executable, str(RANK)], stdout=sink, stderr=subprocess.STDOUT, env=environment,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    # ---- what it looks at

    def logs(self):
        return [Log(int(path.name[4:]), path.read_text()) for path in sorted(self.folder.glob("log.*"))]

    def steps(self):
        return max((log.steps[-1].number for log in self.logs() if log.steps), default=-1)

    def harmed(self):
        return {harm.pid for harm in self.harms if harm.causes}

    def whole(self):
        """Logs of members that live, have the state, and were not harmed."""
        return [log for log in self.logs() if log.epochs and log.pid not in self.harmed() and is_alive(log.pid) and not log.removed]

    def await_(self, what, condition, steps_count=True):
        """Until it holds. Hang: it does not for PATIENCE, counted from the newest step if that counts."""
        steps, since = self.steps(), time.monotonic()
        while not condition():
            if self.process.poll() is not None:
                raise Hang(f"the job ended with {self.process.returncode} while churn waited until {what}")
            now = self.steps()
            if now != steps and steps_count:
                steps, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise Hang(f"(a) {PATIENCE:g} s, and not yet: {what}")
            time.sleep(0.01)

    # ---- what it does

    def offer(self, slots):
        """What the discovery script says from now on."""
        self.slots = slots
        text = f"localhost:{slots}\n"
        fresh = self.folder / "hosts.new"
        fresh.write_text(text)
        fresh.rename(self.folder / "hosts")

    def victims(self):
        """(pid, member or -1, whether it is in an epoch) of whom may be harmed: one that has the state is always left."""
        logs = self.logs()
        whole = self.whole()
        left = [(log.pid, log.member, True) for log in whole] if len(whole) > 1 else []
        agent = agent_of(self.process.pid)
        said = {log.pid: log for log in logs}
        for pid in processes_of(self.canary):
            if pid in (agent, self.process.pid) or pid in self.harmed() or parent_of(pid) != agent:
                continue
            if b"rank.py" not in command_of(pid):
                continue
            if pid not in said:
                left.append((pid, -1, False))
            elif not said[pid].epochs:
                left.append((pid, said[pid].member, False))
        return left

    def harm(self):
        victims = self.victims()
        if not victims:
            return
        pid, member, was_in = self.chance.choice(victims)
        kind = self.chance.choice(self.plan.kinds)
        try:
            if kind in ("stop_kill", "pause"):
                os.kill(pid, signal.SIGSTOP)
            self.harms.append(Harm(kind, pid, member, CAUSES[kind], was_in))
            if kind in ("stop_kill", "pause"):
                time.sleep(self.chance.choice((0.0, 0.01, 0.3, 1.0)))
            last = {"pause": signal.SIGCONT, "raise": signal.SIGUSR1, "exit": signal.SIGUSR2}
            os.kill(pid, last.get(kind, signal.SIGKILL))
        except ProcessLookupError:
            pass  # it was removed meanwhile
        if kind in ("raise", "exit"):  # it ends when it gets to it
            self.await_(f"process {pid} has ended", lambda: not is_alive(pid))

    def churn(self):
        self.await_("there is a step", lambda: self.steps() >= 0)
        while len(self.harms) < self.plan.harms:
            time.sleep(self.chance.choice((0.0, 0.05, 0.3, 1.0)))
            if self.plan.policy == "discovery" and self.chance.random() < 0.5:
                self.offer(self.chance.randint(1, 5))
            many = len(self.harms)
            self.harm()
            if self.chance.random() < 0.4 and len(self.harms) < self.plan.harms:
                time.sleep(self.chance.choice((0.0, 0.002, 0.02, 0.2)))
                self.harm()
            if len(self.harms) == many and len(self.whole()) < 2 and self.plan.policy != "replace":
                if self.plan.policy == "shrink":
                    return
                self.offer(3)
            # Three losses in a row without a commit would end the job.
            steps = self.steps()
            self.await_("there are new steps", lambda: self.steps() > steps + 1)

    def expected(self):
        """Ranks in the end; None: it depends."""
        lost = [harm for harm in self.harms if harm.causes]
        if self.plan.policy == "shrink" and all(harm.was_in for harm in lost):
            return self.plan.ranks - len(lost)
        if len(lost) <= 3 and self.plan.policy in ("replace", "discovery"):
            return self.slots
        return None

    def settle(self):
        wanted = self.expected()
        if wanted is None:
            return

        def settled():
            whole = self.whole()
            newest = max((log.epochs[-1].number for log in whole), default=0)
            return len(whole) == wanted and all(log.epochs[-1].number == newest for log in whole)

        self.await_(f"{wanted} ranks train together", settled, steps_count=False)

    def run(self):
        """(failures, exit code or None)"""
        try:
            self.churn()
            self.settle()
            self.sockets = sockets_of(processes_of(self.canary))
            (self.folder / "enough").touch()
            return [], self.process.wait(PATIENCE)
        except Hang as hang:
            self.write_stacks()
            return [str(hang)], self.process.poll()
        except subprocess.TimeoutExpired:
            self.write_stacks()
            return [f"(a) the job did not end within {PATIENCE:g} s"], None

    def write_stacks(self):
        """Of ranks that live, to stack.<member>."""
        for log in self.logs():
            if is_alive(log.pid):
                os.kill(log.pid, signal.SIGURG)
        time.sleep(1)

    def leftovers(self):
        """(d): failures."""
        limit = time.monotonic() + LEFTOVER_LIMIT
        while True:
            left = [f"process {pid}" for pid in processes_of(self.canary)]
            left += [f"{name} among temporary files" for name in os.listdir(self.folder / "tmp") if name.startswith("rueda")]
            left += sorted(name for name in names() - self.before if name.startswith("/dev/shm") and not is_mapped(name))
            left += [f"socket {inode}" for inode in self.sockets & open_inodes()]
            if not left or time.monotonic() > limit:
                return [f"(d) {what} is left" for what in left]
            time.sleep(0.05)


def is_mapped(name):
    """By anybody: then it is another job's."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in maps.read_text():
                return True
        except OSError:
            continue
    return False


def run_job(seed, ruedarun, kinds=KINDS, harms=6, keep=False):
    """The Report of the job of a seed."""
    plan = Plan(seed, kinds, harms)
    job = Job(plan, ruedarun)
    started, steps = time.monotonic(), 0
    try:
        failures, code = job.run()
        steps = job.steps() + 1
        if not failures:
            failures = job.leftovers()
            failures += judge(job.logs(), job.harms, code, job.output.read_text(errors="replace"), plan.size)
    finally:
        kill_all(job.canary)
        job.process.wait()
    kept = str(job.folder) if failures or keep else ""
    if not kept:
        shutil.rmtree(job.folder, ignore_errors=True)
    done = ", ".join(f"{harm.kind} {harm.member}" for harm in job.harms)
    return Report(failures, f"{plan}: {done}", len(job.harms), steps, time.monotonic() - started, kept)
