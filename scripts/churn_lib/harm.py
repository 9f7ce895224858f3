"""One job of churn: what is done to its ranks, from the seed."""

import os
import random
import signal
import time
from typing import NamedTuple

from churn_lib.job import Job, is_alive
from churn_lib.judge import Harm
from fault_matrix_lib.remains import command_of, parent_of
from fault_matrix_lib.run import agent_of, processes_of

KINDS = ("kill", "stop_kill", "pause", "raise", "exit")
# What is said of such an end. Before a rank has its handlers, signals end it by themselves.
CAUSES = {
    "kill": ("SIGKILL",),
    "stop_kill": ("SIGKILL",),
    "pause": (),
    "raise": ("code 1", "SIGUSR1"),
    "exit": ("code 7", "SIGUSR2"),
}
ALONE_SECONDS = 20.0  # longer than a rank takes to come
PROGRAMS = "plain", "torch"
POLICIES = ("replace", "replace", "shrink", "discovery")


class Report(NamedTuple):
    failures: list
    summary: str
    harms: int
    steps: int
    seconds: float
    folder: str  # with the logs; "" after success


class Plan:
    """What happens in the job of a seed."""

    def __init__(self, seed, kinds, harms, programs):
        chance = self.chance = random.Random(seed)
        self.kinds, self.faults = kinds, {}
        self.ranks = chance.randint(2, 4)
        self.program = chance.choice(programs)
        self.policy = chance.choice(POLICIES)
        self.join = chance.choice(("ready", "ready", "announce"))
        self.size = chance.choice((64, 5000, 200_000))
        self.harms = chance.randint(1, harms)
        # A slot is given up when it has failed four times: there must be one more than are needed, and no two may be.
        self.min_np = chance.randint(1, self.ranks - 1) if self.policy == "replace" and self.harms < 8 else 1

    def __str__(self):
        return f"{self.ranks} ranks, {self.program} of {self.size}, {self.policy}, {self.join}, min-np {self.min_np}"


class ChurnJob(Job):
    """A job whose ranks are harmed from outside."""

    def __init__(self, plan, ruedarun):
        super().__init__(plan, ruedarun)
        self.chance = plan.chance

    def victims(self):
        """(pid, member or -1, whether it is in an epoch) of whom may be harmed: one that has the state is always left."""
        logs = self.logs()
        whole = self.whole()
        newest = max((log.epochs[-1].number for log in whole), default=0)
        stay = sum(log.epochs[-1].number == newest for log in whole)
        # Fewer slots were offered and the job has not followed, as far as we see: some leave, the state is with the
        # others, whatever has been offered since.
        if self.plan.policy == "discovery" and self.fewest < stay:
            stay = 1
        else:
            self.fewest = self.slots
        left = [(log.pid, log.member, True) for log in whole] if stay > 1 else []
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
            self.await_(f"process {pid} has ended", lambda: not is_alive(pid), steps_count=False)

    def churn(self):
        self.await_("there is a step", lambda: self.steps() >= 0)
        lately = time.monotonic()
        while len(self.harms) < self.plan.harms:
            time.sleep(self.chance.choice((0.0, 0.05, 0.3, 1.0)))
            if self.plan.policy == "discovery" and self.chance.random() < 0.5:
                self.offer(self.chance.randint(1, 5))
            many = len(self.harms)
            self.harm()
            if self.chance.random() < 0.4 and len(self.harms) < self.plan.harms:
                time.sleep(self.chance.choice((0.0, 0.002, 0.02, 0.2)))
                self.harm()
            if len(self.harms) > many:
                lately = time.monotonic()
            elif time.monotonic() > lately + ALONE_SECONDS:
                return  # no place is filled any more: one that has failed four times is given up
            elif len(self.whole()) < 2 and self.plan.policy == "shrink":
                return
            elif len(self.whole()) < 2 and self.plan.policy == "discovery":
                self.offer(3)
            # Three losses in a row without a commit would end the job.
            steps = self.steps()
            self.await_("there are new steps", lambda: self.steps() > steps + 1)

    def expected(self):
        lost = [harm for harm in self.harms if harm.causes]
        if self.plan.policy == "shrink" and all(harm.was_in for harm in lost):
            return self.plan.ranks - len(lost)
        if len(lost) <= 3 and self.plan.policy in ("replace", "discovery"):
            return self.slots
        return None


def run_job(seed, ruedarun, kinds=KINDS, harms=6, keep=False, programs=PROGRAMS):
    """The Report of the job of a seed."""
    plan = Plan(seed, kinds, harms, programs)
    job = ChurnJob(plan, ruedarun)
    started = time.monotonic()
    try:
        failures = job.verdicts()
        steps = job.steps() + 1
    finally:
        job.end()
    kept = str(job.folder) if failures or keep else ""
    if not kept:
        job.remove()
    done = ", ".join(f"{harm.kind} {harm.member}" for harm in job.harms)
    return Report(failures, f"{plan}: {done}", len(job.harms), steps, time.monotonic() - started, kept)
