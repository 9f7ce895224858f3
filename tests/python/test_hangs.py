"""A rank that others wait for is explained by the launcher: who, what it does, where, since when."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from worlds import launch, ruedarun

TOOL = str(pathlib.Path(ruedarun()).with_name("rueda"))
SOON = {"RUEDA_STALL_CHECK_TIME_SECONDS": "1"}

# Rank 1 is elsewhere; the others wait until the tensor is failed, so that the job ends by itself.
HANG = """
import ctypes, os, sys, threading, time
import numpy as np
import rueda as hvd

def elsewhere(how):
    if how == "loop":
        while True:
            pass
    while how == "gil":  # sleeps in C with the interpreter's lock; the signal ends a C sleep early
        ctypes.PyDLL(None).sleep(1000)
    if how == "read":
        os.read(os.pipe()[0], 1)
    if how == "sleep":
        time.sleep(1000)

hvd.init()
hvd.allreduce(np.ones(2), name="gradient")
if hvd.rank() == 1:
    handle = hvd.allreduce_async(np.ones(3), name="lonley")
    elsewhere(sys.argv[1])
hvd.allreduce(np.ones((3, 2), np.float32), name="lonely")
"""

LINES = HANG.splitlines()
WAITS_AT = 1 + next(i for i, line in enumerate(LINES) if '"lonely"' in line)
ELSEWHERE_AT = 1 + next(i for i, line in enumerate(LINES) if '"lonley"' in line)

SHOWN = {
    "loop": ["computing"],
    "gil": ["blocked in nanosleep", "nanosleep + "],
    "read": ["blocked in read of descriptor"],
    "sleep": ["blocked in nanosleep", "nanosleep + "],
}


# Rank 0 comes when somebody writes into the gate.
WAITS_AT_A_GATE = """import os, numpy as np, rueda as hvd
hvd.init()
hvd.allreduce(np.ones(1), name='g')
if hvd.rank() == 0: os.read(os.open('gate', os.O_RDONLY), 1)
hvd.allreduce(np.ones(2), name='h')
"""

STOPPED = """
import os, signal, numpy as np, rueda as hvd
hvd.init()
if hvd.rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
hvd.allreduce(np.ones(1), name='x')
"""


def hang(how, folder, env=None, options=(), size=3):
    script = folder / "hang.py"
    script.write_text(STOPPED if how == "stopped" else HANG)
    return launch(
        size,
        [sys.executable, script, how],
        {**SOON, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS": "6", "RUEDA_DEAD_SECONDS": "60", **(env or {})},
        options=["--grace-period", "2", *options],
        folder=folder,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(exit code, output, folder) of a job that hung in one of these ways: all at once, as they only wait."""
    folders = {how: tmp_path_factory.mktemp(how) for how in (*SHOWN, "stopped", "abort")}
    policy = ["--stall-policy", "abort", "--flight-recorder", folders["abort"] / "flight"]
    with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
        jobs = {how: pool.submit(hang, how, folders[how]) for how in (*SHOWN, "stopped")}
        jobs["abort"] = pool.submit(
            hang, "sleep", folders["abort"], {"RUEDA_STALL_SHUTDOWN_TIME_SECONDS": "0"}, policy
        )
        yield lambda how: (*jobs[how].result(), folders[how])


@pytest.mark.parametrize("how", SHOWN)
def test_an_absent_rank_is_explained_with_its_stacks(how, ended):
    code, output, _ = ended(how)
    assert code not in (0, None), output
    assert f"allreduce 'lonely' float32[3,2] at hang.py:{WAITS_AT} in <module>" in output, output
    assert "in: ranks 0, 2" in output
    assert "not in: rank 1 (pid " in output
    last = f"allreduce 'lonley' float64[3] at hang.py:{ELSEWHERE_AT} in <module>"
    assert "its last operation: " + last in output
    assert "the nearest name that it did submit: allreduce 'lonley'" in output
    assert "in elsewhere" in output, output  # Python's stack
    for text in SHOWN[how]:
        assert text in output, output
    # The handlers that write the stack are not in it.
    newest = re.findall(r"native stack \(newest first\):\nruedarun: +(.*)", output)
    assert newest and not any("raise" in frame or "kill" in frame for frame in newest), output
    assert "gsignal +" not in output and "restore_rt" not in output, output
    if how in ("sleep", "gil"):
        assert any("nanosleep + " in frame for frame in newest), output
    # Every waiting rank's error has it too, not only the launcher.
    for rank in (0, 2):
        own = [line for line in output.splitlines() if line.startswith(f"[{rank}]<stderr>")]
        assert any("not in: rank 1" in line for line in own), output
        assert any("in elsewhere" in line for line in own), output


def test_a_stopped_rank_is_called_silent(ended):
    code, output, _ = ended("stopped")
    assert code not in (0, None), output
    assert "silent: stopped by a signal" in output, output


def test_the_policy_abort_fails_the_tensor_and_writes_the_flight_recorders(ended):
    code, output, folder = ended("abort")
    assert code not in (0, None), output
    assert "RUEDA_STALL_POLICY=abort" in output, output
    # The last lines are about the hang, not about how we ended the absentee.
    end = output[output.rindex(" failed: "):]
    assert re.search(r"^ruedarun: rank [02] .* failed: exited with code 1$", output, re.MULTILINE), output
    assert "reported: allreduce 'lonely' was submitted by ranks 0, 2 but not by rank 1 (pid " in end, output
    assert "rank 1 was stopped" in end, output
    said = subprocess.run([TOOL, "explain", folder / "flight"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "first divergence after allreduce 'gradient':" in said.stdout, said.stdout
    assert "rank 1 submitted allreduce 'lonley' float64[3]" in said.stdout
    assert "ranks 0, 2 submitted allreduce 'lonely' float32[3,2]" in said.stdout
    assert "in elsewhere" in said.stdout  # from when it still lived


RING = """
import sys, time, numpy as np, rueda as hvd
from rueda.attention import ring_attention
hvd.init()
q = np.ones((1, 8, 2, 16), np.float32)
options = {"length": 16, "causal": True}
if hvd.rank() == 0 and sys.argv[1] == "absent": time.sleep(1000)
if hvd.rank() == 0: options = {"length": 16, "window_size": (0, 5)}
ring_attention(q, q, q, **options)
"""


@pytest.mark.parametrize("how", ["absent", "another"])
def test_a_ring_in_which_a_rank_waits_for_ever_is_explained_and_ended(how, tmp_path):
    script = tmp_path / "ring.py"
    script.write_text(RING)
    limits = {**SOON, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS": "6"}
    options = ["--grace-period", "2"]
    code, output = launch(2, [sys.executable, script, how], limits, options=options, folder=tmp_path)
    assert code not in (0, None), output
    peer = "rank 0" if how == "absent" else "rank [01]"
    for text in (
        rf"ruedarun: stalled for .*: (recv|send) 'attention' uint8\[\d+\] (from|to) {peer}\b",
        rf"ruedarun:   not in: {peer} \(pid \d+\) does something else: blocked in ",
        rf"stalled: a message (from|to) {peer} \(pid .* has it called the same attention",
        rf"DeadlineExceeded: attention forward, step 1 of 1, .* {peer}: nothing for \d+ s \(RUEDA_STALL_SHUTDOWN_TIME_SECONDS",
    ):
        assert re.search(text, output), (text, output)


# Messages of the failed call that never meet are nobody's wait.
OVER = """
import time, numpy as np, rueda as hvd
from rueda.attention import ring_attention
hvd.init()
q = np.ones((1, 8, 2, 16), np.float32)
try:  # the first needs nothing of the last, whose call is another
    ring_attention(q, q, q, length=24, window_size=(8, 0), softmax_scale=1.0 + (hvd.rank() == 2))
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
began = time.monotonic()
while hvd.allreduce(np.array([time.monotonic() - began]), op=hvd.Min, name="passed")[0] < 3: time.sleep(0.1)
"""


def test_a_call_that_has_failed_is_no_stall(tmp_path):
    script = tmp_path / "over.py"
    script.write_text(OVER)
    code, output = launch(3, [sys.executable, script], SOON, folder=tmp_path)
    assert code == 0 and output.count("told: ") == 2, output
    assert "stalled" not in output, output


def test_a_folder_that_hangs_keeps_nobody_waiting_for_ever(tmp_path):
    folder = tmp_path / "flight"
    folder.mkdir()
    os.mkfifo(folder / "flight.rank0.bin.part")  # opening it waits for a reader, as a dead file server would
    script = "import rueda as hvd, sys; hvd.init(); sys.exit(3 if hvd.rank() == 1 else 0)"
    code, output = launch(2, [sys.executable, "-c", script], options=["--flight-recorder", folder])
    assert code == 3, output
    assert f"the folder '{folder}' has not answered for 5 s: the flight recorders were not written" in output
    assert "rank 1 (pid " in output and "failed: exited with code 3" in output, output


def test_the_policies_warn_and_dump_tell_and_let_the_job_go_on(tmp_path):
    """Longer than the policy abort would: the third explanation comes after four seconds."""
    jobs = {}
    for policy in ("warn", "dump"):
        folder = tmp_path / policy
        folder.mkdir()
        (folder / "run.py").write_text(WAITS_AT_A_GATE)
        os.mkfifo(folder / "gate")
        options = ["--stall-policy", policy, "--flight-recorder", "flight"]
        jobs[policy] = subprocess.Popen(
            [ruedarun(), *options, "-np", "2", sys.executable, "run.py"],
            cwd=folder,
            env={**os.environ, **SOON},
            stdout=subprocess.DEVNULL,
            stderr=(folder / "err").open("w"),
        )
    try:
        for policy, job in jobs.items():
            folder = tmp_path / policy

            def told(times=3, err=folder / "err"):
                return err.read_text().count("stalled for") >= times

            wait_until(lambda job=job: told() or job.poll() is not None)
            text = (folder / "err").read_text()
            assert job.poll() is None, text
            files = sorted(path.name for path in folder.glob("flight/*"))
            assert files == (["flight.rank0.bin", "flight.rank1.bin"] if policy == "dump" else []), text
            (folder / "gate").write_text("x")
            assert job.wait(60) == 0, (folder / "err").read_text()
    finally:
        for job in jobs.values():
            job.kill()
            job.wait()


def test_the_flight_recorder_of_a_killed_rank_is_read(tmp_path):
    script = tmp_path / "kill.py"
    script.write_text(
        "import os, signal, numpy as np, rueda as hvd\n"
        "hvd.init()\n"
        "for i in range(50): hvd.allreduce(np.ones(1), name='g')\n"
        "if hvd.rank() == 1:\n"
        "    hvd.allreduce_async(np.ones(5), name='last words')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "hvd.allreduce(np.ones(1), name='after')\n"
    )
    folder = tmp_path / "flight"
    code, output = launch(2, [sys.executable, script], options=["--flight-recorder", folder])
    assert code == 128 + signal.SIGKILL, output
    assert f"rueda explain {folder}" in output
    said = subprocess.run([TOOL, "explain", folder], capture_output=True, text=True).stdout
    assert "rank 1" in said and "killed by signal 9 (SIGKILL)" in said, said
    assert "51 operations" in said, said
    assert "last: allreduce 'last words' float64[5]" in said, said


SETS_COME_AND_GO = """
import sys, numpy as np, rueda as hvd
hvd.init()
rank = hvd.rank()
def late(who):  # the others have asked long before
    hvd.recv(np.ones(1), (who + 1) % 3) if rank == who else None
    hvd.send(np.ones(1), who) if rank == (who + 1) % 3 else None
for turn in range(3):
    sets = [hvd.add_process_set(members) for members in ([0, 1], [1, 2], [turn])]
    for one in sets:
        for step in range(20 if one.included() else 0):  # a step plan, too
            hvd.allreduce(np.ones(3), name="x", process_set=one)
    pending = hvd.allreduce_async(np.ones(3), name="alone", process_set=sets[0]) if rank == 0 else None
    for one in sets[::-1]:
        late(turn)
        hvd.remove_process_set(one)
    try:
        hvd.synchronize(pending) if pending is not None else None
    except hvd.HorovodInternalError as error:
        assert "removed" in str(error), error
assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
hvd.barrier()
sys.exit(3 if rank == 1 else 0)
"""


def test_no_record_of_a_change_of_the_process_sets_stays_open(tmp_path):
    """One that did was taken for a stall a minute later, in a job that ran on."""
    (tmp_path / "sets.py").write_text(SETS_COME_AND_GO)
    folder = tmp_path / "flight"
    code, output = launch(3, [sys.executable, tmp_path / "sets.py"], options=["--flight-recorder", folder])
    assert code == 3, output
    said = subprocess.run([TOOL, "explain", folder], capture_output=True, text=True).stdout
    assert said.count(" operations") == 3 and "not ended" not in said and "waiting" not in said, said


def wait_until(look, patience=60):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def job_name(errors):
    """Of the job whose ruedarun --verbose writes there; None before it has."""
    words = errors.read_text().split(", job ")
    return words[1].split(",")[0] if len(words) > 1 else None


def test_status_shows_a_running_job_and_sigusr2_writes_files(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(WAITS_AT_A_GATE)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = subprocess.Popen(
        [ruedarun(), "--verbose", "--flight-recorder", "flight", "-np", "2", sys.executable, script],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "err").open("w"),
    )
    try:
        job_id = wait_until(lambda: job_name(tmp_path / "err"))

        def status():
            said = subprocess.run(
                [TOOL, "status", job_id, "--json"], capture_output=True, text=True
            )
            return json.loads(said.stdout) if said.returncode == 0 else {}

        def waits():
            found = status()
            return found if [one["name"] for one in found.get("waits", [])] == ["allreduce.h"] else None

        shown = wait_until(waits)
        assert [rank["life"] for rank in shown["ranks"]] == ["running"] * 2
        assert [rank["operations"] for rank in shown["ranks"]] == [1, 2]
        assert shown["ranks"][1]["last"]["name"] == "allreduce.h"
        assert shown["waits"][0]["in"] == [1] and shown["waits"][0]["out"] == [0]
        text = subprocess.run([TOOL, "status", job_id], capture_output=True, text=True).stdout
        assert "allreduce 'h' float64[2] at run.py:5 in <module>: rank 1 in, not in: rank 0" in text

        job.send_signal(signal.SIGUSR2)
        folder = tmp_path / "flight"
        wait_until(lambda: "rueda explain" in (tmp_path / "err").read_text())
        assert sorted(path.name for path in folder.iterdir()) == [
            "flight.rank0.bin",
            "flight.rank1.bin",
        ]
        gate.write_text("x")
        assert job.wait(60) == 0
        gone = subprocess.run([TOOL, "status", job_id], capture_output=True, text=True)
        assert gone.returncode == 1 and "no job" in gone.stderr
    finally:
        job.kill()
        job.wait()


def test_explain_says_what_is_wrong_with_its_folder(tmp_path):
    said = subprocess.run([TOOL, "explain", tmp_path], capture_output=True, text=True)
    assert said.returncode == 1 and "--flight-recorder" in said.stderr
    (tmp_path / "flight.rank0.bin").write_bytes(b"x" * 100)
    said = subprocess.run([TOOL, "explain", tmp_path], capture_output=True, text=True)
    assert said.returncode == 1 and "100 bytes" in said.stderr
