"""The heal block of the fault matrix: a rank of an elastic job is lost in each phase, those of a heal included.

Each cell is a job of three ranks whose lost ones are replaced. In the phases of a heal, and for a newcomer, rank 1 is killed before, so
that there is a heal. Verdicts are those of churn's observer (`churn_lib.judge`): every acknowledged step is there once, and exact, and the
same on all ranks and in a replay; the target is named, nobody else; the job goes on with three ranks and ends with 0; nothing is left.
"""

import itertools
import random
import time
from types import SimpleNamespace
from typing import NamedTuple

from churn_lib.job import Job, is_alive
from churn_lib.judge import Harm
from fault_matrix_lib.run import Outcome

# fault: words, one of which is in what the launcher says of such an end.
FAULTS = {
    "sigkill": ("SIGKILL",),
    "segv": ("SIGSEGV",),
    "abort": ("SIGABRT",),
    "exit_0": ("code 0", "without leaving"),
    "exit_1": ("code 1",),
    "stop": ("it was stopped",),
}
# Of training; of a heal; of a newcomer alone.
TRAINING = ("gradient", "collective", "applied", "vote", "acknowledged")
HEALING = ("ended", "callback", "sync", "synced")
JOINING = ("start", "built")
PHASES = (*TRAINING, *HEALING, *JOINING)
ROLES = ("root", "other", "newcomer")
PROGRAMS = ("plain", "torch")
RANKS, FIRST_LOST, NEWCOMER = 3, 1, 3  # members
BEFORE = 6  # steps before the first loss


class Cell(NamedTuple):
    fault: str
    phase: str
    role: str
    program: str

    def __str__(self):
        return ",".join(self)

    @classmethod
    def parse(cls, text):
        cell = cls(*text.split(","))
        for value, known in zip(cell, (FAULTS, PHASES, ROLES, PROGRAMS)):
            if value not in known:
                raise ValueError(f"'{value}' in '{text}': expected one of {', '.join(known)}")
        return cell


def every_cell():
    return [Cell(*values) for values in itertools.product(FAULTS, PHASES, ROLES, PROGRAMS)]


def why_not(cell):
    """Why this cell cannot be run; None if it can."""
    if cell.phase in JOINING and cell.role != "newcomer":
        return "only a newcomer comes to it while others train"
    if cell.phase in ("ended", "callback") and cell.role == "newcomer":
        return "a newcomer has no epoch that could end"
    return None


def sample():
    return [
        Cell("sigkill", "collective", "root", "plain"),
        Cell("segv", "vote", "other", "plain"),
        Cell("exit_1", "applied", "other", "plain"),
        Cell("sigkill", "ended", "root", "plain"),
        Cell("abort", "callback", "other", "plain"),
        Cell("sigkill", "sync", "root", "plain"),
        Cell("sigkill", "built", "newcomer", "plain"),
        Cell("exit_1", "sync", "newcomer", "plain"),
    ]


def short():
    """Every fault in every phase, roles and programs in turn."""
    chosen = []
    for number, (fault, phase) in enumerate(itertools.product(FAULTS, PHASES)):
        turns = list(itertools.product(ROLES, PROGRAMS))
        turns = turns[number % 6 :] + turns[: number % 6]
        cells = [Cell(fault, phase, *turn) for turn in turns]
        chosen.append(next(cell for cell in cells if why_not(cell) is None))
    return chosen


def plan_of(cell, seed):
    """What each member does to itself: {member: [fault, phase, the how manieth time]}."""
    chance = random.Random(f"{cell}/{seed}")
    target = {"root": 0, "other": 2, "newcomer": NEWCOMER}[cell.role]
    faults = {}
    if cell.role == "newcomer" or cell.phase in HEALING:
        faults[FIRST_LOST] = ["sigkill", "gradient", BEFORE]
    if cell.role == "newcomer":
        when = 1 if cell.phase in (*HEALING, *JOINING) else chance.randint(1, 3)
    elif cell.phase in ("sync", "synced"):
        when = 2  # the first is that of the beginning
    elif cell.phase in HEALING:
        when = 1
    else:
        when = BEFORE + chance.randint(0, 20)
    faults[target] = [cell.fault, cell.phase, when]
    return SimpleNamespace(
        chance=chance, ranks=RANKS, program=cell.program, policy="replace", join="ready", min_np=1, harms=len(faults),
        size=chance.choice((64, 5000, 200_000)), faults=faults, target=target,
    )  # fmt: skip


class HealJob(Job):
    """A job whose ranks harm themselves."""

    def note_harms(self):
        """How many have."""
        self.harms = [
            Harm(log.now, log.pid, log.member, FAULTS[log.now.split()[0]], bool(log.epochs)) for log in self.logs() if log.now
        ]  # fmt: skip
        return len(self.harms)

    def churn(self):
        self.await_("the faults have come", lambda: self.note_harms() == len(self.plan.faults), steps_count=False)
        pids = [harm.pid for harm in self.harms]
        self.await_("the lost are gone", lambda: not any(is_alive(pid) for pid in pids), steps_count=False)

    def expected(self):
        return RANKS


def run_cell(cell, seed, ruedarun):
    """The Outcome of one run. Everything random comes from the seed."""
    plan = plan_of(cell, seed)
    job = HealJob(plan, ruedarun, RUEDA_DEAD_SECONDS="3")
    started = time.monotonic()
    try:
        failures = job.verdicts()
        return Outcome(failures, time.monotonic() - started, -1.0, job.said())
    finally:
        job.remove()
