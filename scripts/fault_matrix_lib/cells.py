"""The cells of the fault matrix: 24 faults x 8 phases x 3 transports x 2 targets, and which of them can be run here."""

import itertools
import os
from typing import NamedTuple

from fault_matrix_lib import links

# fault: what must come of it.
#   lost         the target is lost: every other rank raises an error that names it, exit code not 0
#   ends         the target leaves or raises by itself: as lost, but its exit code may be 0
#   fine         nobody is lost, all results right, exit code 0
#   refused      where init is under way an error with the needed and the available amount, else fine
#   cut          a connection ends, no process does: every rank raises an error that names a rank
#   parted       the target's host is cut off: every rank raises an error that names a rank of the other side
#   interrupted  exit code 130, nothing left
#   orphaned     the agent is gone: every process ends, exit code not 0
FAULTS = {
    "sigkill": "lost",
    "segv_core": "lost",
    "abort": "lost",
    "exit_0": "ends",
    "exit_1": "ends",
    "stop_2s": "fine",
    "stop_for_ever": "lost",
    "starve": "fine",
    "oom_kill": "lost",
    "shm_full": "refused",
    "no_descriptors": "refused",
    "disk_full": "fine",
    "black_hole": "parted",
    "black_hole_in": "parted",
    "black_hole_out": "parted",
    "reset": "cut",
    "link_down": "parted",
    "delay": "fine",
    "loss_20": "fine",
    "one_mbit": "fine",
    "corrupt": "cut",
    "reorder": "fine",
    "ctrl_c": "interrupted",
    "agent_killed": "orphaned",
}
PHASES = ("rendezvous", "init", "negotiate", "fuse", "collective", "callback", "commit", "state_sync")
TRANSPORTS = ("shm", "tcp", "mixed")
TARGETS = ("coordinator", "other")


class Cell(NamedTuple):
    fault: str
    phase: str
    transport: str
    target: str

    def __str__(self):
        return ",".join(self)

    @classmethod
    def parse(cls, text):
        cell = cls(*text.split(","))
        for value, known in zip(cell, (FAULTS, PHASES, TRANSPORTS, TARGETS)):
            if value not in known:
                raise ValueError(f"'{value}' in '{text}': expected one of {', '.join(known)}")
        return cell


def every_cell():
    return [Cell(*values) for values in itertools.product(FAULTS, PHASES, TRANSPORTS, TARGETS)]


MEMORY_GROUPS = "/sys/fs/cgroup/memory"


def why_not(cell):
    """Why this cell cannot be run here; None if it can."""
    kind = FAULTS[cell.fault]
    if cell.fault in (*links.FAULTS, "reset") and cell.transport == "shm":
        return "shared memory has no link"
    if cell.fault in links.FAULTS:
        return links.why_not()
    if kind == "cut" and cell.phase in ("rendezvous", "init"):
        return "no connection has been made yet"
    if cell.fault == "oom_kill" and not os.access(MEMORY_GROUPS, os.W_OK):
        return "needs a writable memory control group (version 1)"
    return None


def sample():
    """One cell for most kinds of end, in different phases and transports."""
    return [
        Cell("sigkill", "collective", "shm", "coordinator"),
        Cell("sigkill", "init", "shm", "other"),
        Cell("sigkill", "state_sync", "tcp", "other"),
        Cell("segv_core", "negotiate", "mixed", "other"),
        Cell("abort", "commit", "shm", "other"),
        Cell("exit_0", "callback", "tcp", "coordinator"),
        Cell("exit_1", "rendezvous", "shm", "other"),
        Cell("stop_2s", "fuse", "shm", "other"),
        Cell("stop_for_ever", "negotiate", "shm", "coordinator"),
        Cell("no_descriptors", "collective", "shm", "other"),
        Cell("reset", "collective", "tcp", "other"),
        Cell("black_hole", "collective", "tcp", "other"),
        Cell("delay", "fuse", "mixed", "coordinator"),
        Cell("ctrl_c", "fuse", "mixed", "other"),
        Cell("agent_killed", "collective", "shm", "other"),
    ]


def short():
    """Every fault in every phase where it can be run, transports and targets in turn."""
    chosen = []
    for number, (fault, phase) in enumerate(itertools.product(FAULTS, PHASES)):
        turns = list(itertools.product(TRANSPORTS, TARGETS))
        turns = turns[number % 6 :] + turns[: number % 6]
        cells = [Cell(fault, phase, *turn) for turn in turns]
        chosen.append(next((cell for cell in cells if why_not(cell) is None), cells[0]))
    return chosen
