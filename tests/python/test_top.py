"""rueda top in terminals, and as text and JSON (docs/monitoring.md)."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest
from test_hosts_launch import TOOL, Job

# Rank 1 sleeps before each step, and says so of data if it is told to; given a core, it computes there.
RANK = """
import os, sys, time, numpy, rueda as hvd
from rueda import _marks
hvd.init()
data, core = sys.argv[1] == "data", sys.argv[1].removeprefix("core ")
if core.isdigit() and hvd.rank() == 1:
    os.sched_setaffinity(0, {int(core)})
for step in range(100000):
    if core.isdigit():
        end = time.thread_time() + 0.02 * hvd.rank()
        while time.thread_time() < end:
            pass
    elif hvd.rank() == 1:
        if data:
            _marks.begin_data()
        time.sleep(0.02)
        if data:
            _marks.end_data()
    hvd.allreduce(numpy.ones(1000, numpy.float32), name="gradient")
    if step == 20:
        print("up", flush=True)
"""


@contextlib.contextmanager
def running(tmp_path, what="data", size=2):
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    job = Job("-np", size, "--verbose", sys.executable, path, what)
    try:
        name = job.wait_for(r"job ([0-9a-f]{16}),")[0]
        job.wait_for("up", size)
        yield job, name
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGTERM)
        job.wait()


class Terminal:
    """`rueda top` in a pseudo-terminal of so many lines and columns."""

    def __init__(self, job, lines, columns, **environment):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            variables = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment}
            os.execve(TOOL, [TOOL, "top", job], variables)

    def resize(self, lines, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)
        self.screen.resize(lines, columns)

    def press(self, keys):
        os.write(self.fd, keys)

    def wait_for(self, pattern, seconds=60, between="\n"):
        """Reads until the screen shows it; gives the match. A space between lines: where a sentence goes on in the next one."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, between.join(line.rstrip() for line in self.screen.display))
            if found:
                return found
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    more = os.read(self.fd, 65536)
                except OSError:
                    break
                self.raw += more
                self.stream.feed(more)
        raise AssertionError(f"no {pattern!r} on:\n" + "\n".join(self.screen.display))

    def end(self):
        """Its exit code, once it has ended by itself."""
        with contextlib.suppress(OSError):
            while select.select([self.fd], [], [], 60)[0]:
                more = os.read(self.fd, 65536)
                if not more:
                    break
                self.raw += more
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_small_terminal_says_who_is_slow_and_why(tmp_path):
    with running(tmp_path) as (_, job):
        top = Terminal(job, 24, 80)
        top.wait_for(r"slowest: rank 1 on [^;]+; it waits for data for \d+ %", between=" ")
        top.wait_for(r"(?m)^ *RANK HOST +PID STATE")
        top.wait_for(r"(?m)^ *1 .*ms .*%")
        assert all(len(line) <= 80 for line in top.screen.display)
        top.press(b"\x1bOB\r")  # down, enter
        top.wait_for(r"(?m)^rank 1: running")
        top.wait_for("last operations, the newest first")
        top.wait_for("allreduce 'gradient' float32")
        top.resize(100, 80)  # for all that is told
        top.wait_for("(?m)^" + re.escape(f'  File "{tmp_path}/rank.py", line'[:80].rstrip()))  # in its stack
        top.resize(24, 80)
        top.press(b"\x1b")
        top.wait_for("q quit  s sort")
        top.press(b"s")
        top.wait_for(r"s sort \(late\)")
        top.press(b"h")
        top.wait_for("RANKS HOST")
        top.press(b"q")
        assert top.end() == 0


def test_a_large_terminal_has_more_and_may_change_its_size(tmp_path):
    with running(tmp_path, "sleep") as (_, job):
        top = Terminal(job, 60, 200)
        top.wait_for(r"DATA CORE")
        top.wait_for(r"slowest: rank 1 .* it does not compute \(\d+ % of a core\)")
        top.resize(24, 80)
        top.wait_for(r"(?m)^ *RANK HOST +PID STATE +STEPS   STEP {8,}LATE WAIT  GB/s  CPU   MEM *$")
        top.resize(8, 40)
        top.wait_for("q quit")
        top.press(b"q")
        assert top.end() == 0


@contextlib.contextmanager
def hog(core):
    """A process that uses a core as it can."""
    endless = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", endless], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def test_a_process_that_shares_the_core_of_a_rank_is_told(tmp_path):
    core = max(os.sched_getaffinity(0))
    with hog(core), running(tmp_path, f"core {core}") as (_, job):
        look = subprocess.run([TOOL, "top", job, "--once", "--json"], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(look.stdout)
    said = re.search(r"^rank 1 on .* waits for a core for (\d+) % of its time: other processes use (\d\.\d) cores there$", found["slowest"])
    assert said, found["slowest"]
    # The hog has half of the core, and the rank waits for as long as it computes.
    assert int(said[1]) > 20 and float(said[2]) > 0.3, found


def test_no_color_is_respected(tmp_path):
    with running(tmp_path) as (_, job):
        for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
            top = Terminal(job, 24, 80, **variables)
            top.wait_for("slowest: rank 1")
            top.press(b"q")
            assert top.end() == 0
            assert bool(re.search(rb"\x1b\[[0-9;]*3[16]m", top.raw)) == coloured


def test_many_ranks_scroll(tmp_path):
    with running(tmp_path, size=12) as (_, job):
        top = Terminal(job, 12, 80)
        top.wait_for(r"\d+-\d+ of 12")
        top.press(b"\x1bOF")  # end
        top.wait_for(r"(?m)^ +11 ")
        top.press(b"q")
        assert top.end() == 0


def test_the_end_of_the_job_ends_it(tmp_path):
    with running(tmp_path) as (process, job):
        top = Terminal(job, 24, 80)
        top.wait_for("RANK HOST")
        os.killpg(process.process.pid, signal.SIGKILL)
        assert top.end() == 0
        assert b"the job has ended" in top.raw


def test_once_as_text_and_as_json(tmp_path):
    with running(tmp_path) as (_, job):
        text = subprocess.run([TOOL, "top", job, "--once"], capture_output=True, text=True, timeout=60)
        assert text.returncode == 0, text.stderr
        assert re.search(r"slowest: rank 1 on", text.stdout) and "RANK HOST" in text.stdout
        assert all(len(line) <= 80 for line in text.stdout.splitlines())
        found = json.loads(subprocess.run([TOOL, "top", job, "--once", "--json"], capture_output=True, text=True,
                                          timeout=60, check=True).stdout)
        assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
        assert found["ranks"][1]["data_wait_share"] > 0.2 and found["ranks"][1]["late_share"] > 0.2
        assert found["ranks"][0]["step_seconds"] >= 0.02 and found["slowest"].startswith("rank 1 on")
        # Without a terminal one look is all.
        piped = subprocess.run([TOOL, "top", job], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert piped.returncode == 0 and "RANK HOST" in piped.stdout


def test_over_tcp_the_rank_that_waits_for_nobody_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RUEDA_TRANSPORT", "tcp")
    with running(tmp_path, "sleep") as (_, job):
        found = json.loads(subprocess.run([TOOL, "top", job, "--once", "--json"], capture_output=True, text=True,
                                          timeout=60, check=True).stdout)
        assert re.match(r"rank 1 on \S+ waits for nobody, the others wait \d+ % of the time; it does not compute",
                        found["slowest"]), found
        assert found["ranks"][0]["waiting_share"] > 0.5 and found["ranks"][1]["late_share"] < 0.02


def test_json_goes_on_with_a_line_each_second(tmp_path):
    with running(tmp_path) as (_, job):
        with subprocess.Popen([TOOL, "top", job, "--json"], stdout=subprocess.PIPE, text=True) as top:
            first, second = (json.loads(top.stdout.readline()) for _ in range(2))
            top.terminate()
        assert first["job"] == second["job"] == job and second["slowest"].startswith("rank 1 on")
        assert second["ranks"][0]["steps"] > first["ranks"][0]["steps"]


def test_a_terminal_that_nobody_knows_gets_one_look(tmp_path):
    with running(tmp_path) as (_, job):
        top = Terminal(job, 24, 80, TERM="no-such-terminal")
        assert top.end() == 0
        assert b"this terminal is not known" in top.raw and b"slowest: rank 1" in top.raw


@pytest.mark.parametrize("words, code, said", [
    (["--wrong"], 2, "Usage: rueda top"),
    (["0123456789abcdef"], 1, "no job '0123456789abcdef'"),
    (["a", "b"], 2, "Usage"),
])
def test_mistakes(words, code, said):
    done = subprocess.run([TOOL, "top", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and said in done.stderr
