"""Calls of ordered groups in what the launcher and the files of a job tell: by key, number and members."""

import json
import os
import pathlib
import re
import subprocess
import sys

import timelines
from test_hangs import SOON, TOOL, job_name, wait_until
from worlds import launch, ruedarun

HERE = str(pathlib.Path(__file__).parent)

# Rank 1 never makes the third call, or makes it when somebody writes into the gate.
PROGRAM = """
import os, sys, time
import numpy as np
import rueda as hvd
from ordered_groups import Group, add

hvd.init()
if hvd.rank() < 3:
    group = Group("stage 1", [2, 0, 1])
    for _ in range(2):
        add(group, np.ones(6, np.float32))
    if hvd.rank() == 1 and sys.argv[1] == "hang":
        time.sleep(1000)
    if hvd.rank() == 1:
        os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
    add(group, np.ones(40_000, np.float32))
"""


def write(folder):
    script = folder / "groups.py"
    script.write_text(PROGRAM)
    return script


def test_a_member_that_has_not_come_is_named_with_its_group(tmp_path):
    flight = tmp_path / "flight"
    code, output = launch(
        4,
        [sys.executable, write(tmp_path), "hang"],
        {**SOON, "PYTHONPATH": HERE, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS": "4"},
        options=["--grace-period", "2", "--flight-recorder", flight],
        folder=tmp_path,
    )
    assert code not in (0, None), output
    call = "allreduce 'stage 1#2'"
    # The late-rank warning of one member; the launcher's explanation; the error of the members.
    assert re.search(rf"stalled: {call} was called by ranks 2, 0 \d s ago, still missing: rank 1 \(pid ", output), output
    assert re.search(rf"{call} float32\[40000\]", output), output
    assert "in: ranks 0, 2" in output and "not in: rank 1 (pid " in output, output
    assert "its last operation: allreduce 'stage 1#1' float32[6]" in output, output
    assert f"{call} was called by ranks 2, 0 but not by rank 1 (pid " in output, output
    said = subprocess.run([TOOL, "explain", flight], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    apart = said.stdout.split("first divergence in group 'stage 1' after allreduce 'stage 1#1':")[1].splitlines()
    assert apart[1].strip() == "rank 1 submitted nothing more", said.stdout
    assert f"ranks 0, 2 submitted {call} float32[40000]" in apart[2], said.stdout  # rank 3 is no member


def test_status_and_timeline_have_calls_of_groups(tmp_path):
    gate, line = tmp_path / "gate", tmp_path / "line.json"
    os.mkfifo(gate)
    job = subprocess.Popen(
        [ruedarun(), "--verbose", "-np", "4", "--timeline-all-ranks", "--timeline-filename", line, sys.executable, write(tmp_path), gate],
        env={**os.environ, "PYTHONPATH": HERE},
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "err").open("w"),
    )
    try:
        job_id = wait_until(lambda: job_name(tmp_path / "err"))

        def waits():
            said = subprocess.run([TOOL, "status", job_id, "--json"], capture_output=True, text=True)
            found = json.loads(said.stdout) if said.returncode == 0 else {}
            waits = [wait for wait in found.get("waits", []) if wait["name"].endswith("#2") and wait["in"] == [0, 2]]
            return (found, waits) if waits else None

        found, (wait,) = wait_until(waits)
        assert wait["name"] == "allreduce.stage 1#2" and wait["out"] == [1], wait
        assert [rank["operations"] for rank in found["ranks"]] == [4, 3, 4, 0], found  # the opening is one
        text = subprocess.run([TOOL, "status", job_id], capture_output=True, text=True).stdout
        assert "allreduce 'stage 1#2' float32[40000]" in text and "ranks 0, 2 in, not in: rank 1" in text, text
        gate.write_text("x")
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
    # The same group and calls in the files of all members; rank 3 has none.
    files = timelines.tracks(line)
    called = {
        rank: [(event["name"], event["args"]["batch"]) for event in file["on the wire"]]
        for rank, file in sorted(files.items())
    }
    assert called[0] == called[1] == called[2] and not called.get(3), called
    names, batches = zip(*called[0])
    assert names == ("allreduce.stage 1",) * 3, called
    assert [re.fullmatch(r"s\d+\.n(\d)", batch)[1] for batch in batches] == ["0", "1", "2"], called
    assert [event["args"]["bytes"] for event in files[0]["submitted"]] == [24, 24, 160_000], files[0]
