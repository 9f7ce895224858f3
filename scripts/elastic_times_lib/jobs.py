"""The jobs that elastic_times measures, seen from outside. Times are in seconds, of CLOCK_MONOTONIC."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from fault_matrix_lib.run import kill_all

HERE = Path(__file__).parent
PATIENCE = 120.0  # for any one thing to happen
SPARE_SECONDS = 8.0  # until the next spare is warm


class Did(NamedTuple):
    """A step that a member has acknowledged."""

    step: int
    size: int
    at: float
    rank: int
    epoch: int


class Watched:
    """A job whose ranks write logs."""

    def __init__(self, folder, process):
        self.folder, self.process = folder, process

    def lines(self, word):
        """{member: [words of each such line]}"""
        said = {}
        for path in self.folder.glob("log.*"):
            lines = [line.split() for line in path.read_text().splitlines(True) if line.endswith("\n")]
            said[int(path.name[4:])] = [words[1:] for words in lines if words and words[0] == word]
        return said

    def steps(self):
        """{member: [Did]}"""
        return {
            member: [Did(int(step), int(size), float(at), int(rank), int(epoch)) for step, size, at, rank, epoch in lines]
            for member, lines in self.lines("did").items()
        }

    def pid(self, member):
        """Its newest process."""
        return int(self.lines("process")[member][-1][0])

    def await_(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            if self.process.poll() is not None:
                raise RuntimeError(f"the job ended with {self.process.returncode} before {what}:\n{self.output()[-2000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"{PATIENCE:g} s, and not yet: {what}:\n{self.output()[-2000:]}")
            time.sleep(0.005)
        return found

    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def together(self, size, after):
        """[Did]: of each of so many members the first step of one epoch with this size, and after this time; or None."""
        firsts = {}
        for lines in self.steps().values():
            for did in lines:
                if did.size == size and did.at > after:
                    firsts.setdefault(did.epoch, []).append(did)
                    break
        return next((found for found in firsts.values() if len(found) == size), None)

    def finish(self):
        (self.folder / "enough").touch()
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise RuntimeError(f"the job ended with {code}:\n{self.output()[-2000:]}")


@contextlib.contextmanager
def started(command, folder):
    """A Watched job; nothing of it is left afterwards."""
    canary = uuid.uuid4().hex
    environment = dict(os.environ, MATRIX_CANARY=canary, OMP_NUM_THREADS="1", RUEDA_DISCOVERY_INTERVAL="0.1")
    with open(folder / "output", "wb") as sink:
        process = subprocess.Popen(
            list(map(str, command)), stdout=sink, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        yield Watched(folder, process)
    finally:
        kill_all(canary)
        process.wait()


@contextlib.contextmanager
def folder():
    path = Path(tempfile.mkdtemp(prefix="test-of-rueda-elastic-times-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Hogs:
    """Processes that keep the cores busy, while told to."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.all = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.count)]
        self.rest()
        return self

    def __exit__(self, *_):
        for hog in self.all:
            hog.kill()
            hog.wait()

    def work(self):
        for hog in self.all:
            hog.send_signal(signal.SIGCONT)

    def rest(self):
        for hog in self.all:
            hog.send_signal(signal.SIGSTOP)


def kills(ruedarun, count, hogs=0, spares=0, ranks=4, megabytes=100):
    """([until the survivors' next step is done], [until all ranks have made one together], a usual step, imports while all train): at
    most 12, as the rank of a slot is replaced three times. Victims in turn, rank 0 first."""
    healed, whole = [], []
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(Hogs(hogs))
        place = stack.enter_context(folder())
        command = [ruedarun, "-np", ranks, "--min-np", 1, "--spares", spares, sys.executable, HERE / "rank.py", place, megabytes]
        job = stack.enter_context(started([*command, "pause", 0.01], place))
        for number in range(min(count, 3 * ranks)):
            since = time.monotonic() + (SPARE_SECONDS if spares else 0.3)
            job.await_("all train", lambda since=since: job.together(ranks, since))
            busy.work()
            time.sleep(0.2)
            before = {member: lines[-1] for member, lines in job.steps().items() if lines}
            epoch = max(did.epoch for did in before.values())
            victim = next(member for member, did in before.items() if did.epoch == epoch and did.rank == number % ranks)
            survivors = [member for member, did in before.items() if did.epoch == epoch and member != victim]
            killed = time.monotonic()
            os.kill(job.pid(victim), signal.SIGKILL)
            healed.append(job.await_("survivors go on", lambda: first_after(job, survivors, epoch)) - killed)  # noqa: B023
            busy.rest()
            both = job.await_("all train again", lambda killed=killed: job.together(ranks, killed + 0.05))
            whole.append(max(did.at for did in both) - killed)
        usual = median_gap(job)
        imports = min(import_seconds(WITH_OPTIMIZER) for _ in range(2))
        job.finish()
    return healed, whole, usual, imports


def import_seconds(statement="import rueda.torch"):
    """Of Python with rueda.torch and torch, beside whatever runs."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.monotonic() - began


# What each script that trains imports: PyTorch's first optimizer brings torch._dynamo, which is as much again.
WITH_OPTIMIZER = "import rueda.torch, torch; torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)"


def controllers(ruedarun, count):
    """([until another controller has taken over], longest gap between two steps of a rank meanwhile, a usual step): 2 hosts, both here."""
    back, gaps = [], []
    with folder() as place:
        there = place / "there"
        there.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        there.chmod(0o700)
        command = [ruedarun, "-np", 4, "-H", "one:2,two:2", "--rsh-agent", there, "--min-np", 4]
        with started([*command, sys.executable, HERE / "rank.py", place, 1, "pause", 0.01], place) as job:
            for number in range(min(count, 9)):  # the tenth within ten minutes ends the job
                since = time.monotonic()
                job.await_("all train", lambda since=since: job.together(4, since + 0.3))
                said = "another controller has taken over"
                killed = time.monotonic()
                os.kill(controller_of(job.process.pid), signal.SIGKILL)
                job.await_("another takes over", lambda number=number: job.output().count(said) > number)  # noqa: B023
                back.append(time.monotonic() - killed)
                job.await_("all train on", lambda: job.together(4, time.monotonic() - 0.1))
                for lines in job.steps().values():
                    gaps += gaps_of([did for did in lines if did.at > killed - 0.1])
            usual = median_gap(job)
            job.finish()
    return back, max(gaps), usual


def controller_of(driver):
    for pid in Path(f"/proc/{driver}/task/{driver}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text().strip() == "ruedarun-ctrl":
            return int(pid)
    raise RuntimeError(f"ruedarun {driver} has no controller")


def first_after(job, members, epoch):
    """When the last of them had done its first step of a later epoch; None: not yet."""
    steps = job.steps()
    firsts = [next((did.at for did in steps[member] if did.epoch > epoch), None) for member in members]
    return None if None in firsts else max(firsts)


def median_gap(job):
    gaps = sorted(gap for lines in job.steps().values() for gap in gaps_of(lines))
    return gaps[len(gaps) // 2]


def gaps_of(lines):
    return [later.at - earlier.at for earlier, later in zip(lines, lines[1:])]


def joins(ruedarun, count, megabytes=300):
    """([longest gap between steps of the others while a rank joins], a usual step, [seconds of the newcomer's sync])."""
    longest, syncs = [], []
    with folder() as place:
        hosts = place / "hosts"
        hosts.write_text("localhost:2\n")
        command = [ruedarun, "-np", 2, "--min-np", 1, "--host-discovery-script", f"cat {hosts}"]
        with started([*command, sys.executable, HERE / "rank.py", place, megabytes, "pause", 0.01], place) as job:
            job.await_("both train", lambda: job.together(2, 0))
            time.sleep(1)
            for size in range(3, 3 + count):
                began = time.monotonic()
                fresh = place / "hosts.new"
                fresh.write_text(f"localhost:{size}\n")
                fresh.rename(hosts)
                old = list(job.steps())
                joined = job.await_("the newcomer trains", lambda size=size, began=began: job.together(size, began))
                time.sleep(0.5)
                end = max(did.at for did in joined) + 0.5
                steps = job.steps()
                spans = [[did for did in steps[member] if began - 0.5 < did.at < end] for member in old]
                longest.append(max(gap for span in spans for gap in gaps_of(span)))
                syncs.append(float(job.lines("sync")[max(steps)][-1][1]))
            usual = median_gap(job)
            job.finish()
    return longest, usual, syncs


def steady(ruedarun, blocks, size, ranks=2):
    """A plain and an elastic job of `size` bytes, block by block in turns: ([seconds of a usual step of a block] of each, control messages of the elastic)."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(folder())
        watched = {}
        for kind, flags in (("plain", []), ("elastic", ["--min-np", 1])):
            os.mkfifo(place / kind)
            (place / f"output of {kind}").mkdir()
            command = [ruedarun, "-np", ranks, *flags, sys.executable, HERE / "steady_rank.py", place, blocks, kind, size]
            watched[kind] = stack.enter_context(started(command, place / f"output of {kind}"))
        first = os.open(place / "plain", os.O_RDWR)
        stack.callback(os.close, first)
        os.write(first, b"t")
        took, messages = {}, {}
        for kind, job in watched.items():
            if job.process.wait(PATIENCE) != 0:
                raise RuntimeError(job.output()[-2000:])
            said = [(place / f"{kind}.{rank}").read_text().split() for rank in range(ranks)]
            messages[kind] = max(int(words[0]) for words in said)
            took[kind] = [max(map(float, block)) for block in zip(*(words[1:] for words in said))]
        return took["plain"], took["elastic"], messages["elastic"]


def restarts(count, ranks=4, megabytes=100):
    """torchrun: [from a kill until all restarted ranks have made a step]."""
    took = []
    with folder() as place:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "--max-restarts", count]
        command += ["--monitor-interval", 0.1, HERE / "restarted_rank.py", place, megabytes]
        with started(command, place) as job:
            for number in range(count):
                since = time.monotonic()
                job.await_("all train", lambda since=since: job.together(ranks, since))
                epoch = max(lines[-1].epoch for lines in job.steps().values())
                killed = time.monotonic()
                os.kill(job.pid(number % ranks), signal.SIGKILL)
                done = job.await_("all train again", lambda epoch=epoch: first_after(job, range(ranks), epoch))
                took.append(done - killed)
            job.finish()
    return took
