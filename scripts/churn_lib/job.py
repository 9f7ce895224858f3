"""An elastic job of ranks that say what they have acknowledged, and an observer: started, watched, judged, cleared away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from churn_lib.judge import Log, judge
from fault_matrix_lib.remains import names, open_inodes, sockets_of
from fault_matrix_lib.run import kill_all, processes_of

RANK = Path(__file__).with_name("rank.py")
PATIENCE = 60.0  # seconds without a step: it hangs
LEFTOVER_LIMIT = 10.0


class Hang(Exception):
    """No step within PATIENCE."""


def is_alive(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """Base of all: subclasses say how ranks are harmed (`churn`), and how many are there in the end (`expected`).

    Parameters
    ----------
    plan : object
        With ranks, program, policy, join, min_np, size and faults, which rank.py does to itself.
    """

    def __init__(self, plan, ruedarun, **variables):
        self.plan = plan
        self.folder = Path(tempfile.mkdtemp(prefix="test-of-rueda-churn-"))
        (self.folder / "tmp").mkdir()
        self.canary = uuid.uuid4().hex
        self.before = names()
        self.harms, self.slots, self.fewest = [], plan.ranks, plan.ranks
        self.sockets = set()
        self.output = self.folder / "output"
        command = [ruedarun, "-np", plan.ranks, "--min-np", plan.min_np, "--join", plan.join]
        if plan.policy == "discovery":
            self.offer(plan.ranks)
            command += ["--host-discovery-script", f"cat {self.folder}/hosts"]
        else:
            command += ["--on-failure", plan.policy]
        environment = dict(
            os.environ, CHURN_PLAN=json.dumps(
                {"size": plan.size, "folder": str(self.folder), "program": plan.program, "faults": plan.faults}
            ), MATRIX_CANARY=self.canary, TMPDIR=str(self.folder / "tmp"), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
            RUEDA_DISCOVERY_INTERVAL="0.2", **variables,
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
        self.fewest = min(self.fewest, slots)
        text = f"localhost:{slots}\n"
        fresh = self.folder / "hosts.new"
        fresh.write_text(text)
        fresh.rename(self.folder / "hosts")

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

    def churn(self):
        """Until all harm is done."""
        raise NotImplementedError()

    def expected(self):
        """Ranks in the end; None: it depends."""
        raise NotImplementedError()

    def verdicts(self):
        """Runs it: failures, as texts."""
        failures, code = self.run()
        if failures:
            return failures
        failures = self.leftovers()
        return failures + judge(self.logs(), self.harms, code, self.said(), self.plan.size)

    def said(self):
        """What ruedarun has printed."""
        return self.output.read_text(errors="replace")

    def end(self):
        """Nothing of it runs any more."""
        kill_all(self.canary)
        self.process.wait()

    def remove(self):
        """Nor is there any file."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

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
