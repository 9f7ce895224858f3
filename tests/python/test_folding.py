"""``--fold``: a line that several ranks write at about the same time is printed once, and none is lost."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from worlds import TIMEOUT_SECONDS, ruedarun

RANK = """touch ready.$RUEDA_RANK
until [ -e go ]; do sleep 0.01; done
echo loading; echo to stderr >&2; echo loading; echo mine is $RUEDA_RANK
touch written.$RUEDA_RANK
until [ -e leave ]; do sleep 0.01; done"""


def until(true):
    end = time.monotonic() + TIMEOUT_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def written_while_nobody_reads(folder, size, *options, stdout=subprocess.PIPE):
    """Sorted lines of stdout, stderr; all ranks write before the agent reads anything."""
    command = [ruedarun(), "-np", str(size), "--verbose", *options, "sh", "-c", RANK]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=folder)
    said = []
    while not (said and "agent is pid" in said[-1]):
        said.append(process.stderr.readline())
        assert said[-1], said
    agent = int(re.search(r"agent is pid (\d+)", said[-1]).group(1))
    until(lambda: all((folder / f"ready.{rank}").exists() for rank in range(size)))
    os.kill(agent, signal.SIGSTOP)
    until(lambda: pathlib.Path(f"/proc/{agent}/stat").read_text().rsplit(") ", 1)[1][0] == "T")
    (folder / "go").touch()
    until(lambda: all((folder / f"written.{rank}").exists() for rank in range(size)))
    os.kill(agent, signal.SIGCONT)
    (folder / "leave").touch()
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, err
    return sorted((out or "").splitlines()), sorted(line for line in err.splitlines() if "<stderr>" in line)


def test_equal_lines_are_one_with_their_ranks(tmp_path):
    out, err = written_while_nobody_reads(tmp_path, 3, "--fold")
    mine = [f"[{rank}]<stdout>: mine is {rank}" for rank in range(3)]
    assert out == ["[0-2]<stdout>: loading"] * 2 + mine
    # Although each rank has written something else before it.
    assert err == ["[0-2]<stderr>: to stderr"]


def test_ranks_that_are_not_shown_are_not_waited_for(tmp_path):
    out, _ = written_while_nobody_reads(tmp_path, 3, "--fold", "--ranks", "0,2")
    assert out == ["[0,2]<stdout>: loading"] * 2 + ["[0]<stdout>: mine is 0", "[2]<stdout>: mine is 2"]


@pytest.mark.parametrize("options, loading", [((), ["0-1│ loading"]), (("--no-fold",), ["0│ loading", "1│ loading"])])
def test_a_terminal_folds_unless_it_is_switched_off(options, loading, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = os.openpty()
    written_while_nobody_reads(tmp_path, 2, *options, stdout=theirs)
    os.close(theirs)
    lines = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert sorted(lines) == sorted([*loading * 2, "0│ mine is 0", "1│ mine is 1"])


@pytest.mark.parametrize("env, said", [
    ({"OMP_NUM_THREADS": "3"}, "ruedarun: 2 ranks on this host, over shared memory, 3 threads each"),
    ({"OMP_NUM_THREADS": "1", "RUEDA_TRANSPORT": "tcp"}, "ruedarun: 2 ranks on this host, over TCP, 1 thread each"),
])  # fmt: skip
def test_a_terminal_is_told_at_the_start_what_runs_where(env, said):
    ours, theirs = os.openpty()
    command = [ruedarun(), "-np", "2", "true"]
    subprocess.run(command, stderr=theirs, env={**os.environ, **env}, check=True)
    os.close(theirs)
    assert os.read(ours, 4096).decode().splitlines() == [said]
    os.close(ours)


def test_a_file_gets_every_line_of_every_rank(tmp_path):
    out, err = written_while_nobody_reads(tmp_path, 2)
    expected = [f"[{rank}]<stdout>: {line}" for rank in range(2) for line in ("loading", "loading", f"mine is {rank}")]
    assert out == sorted(expected)
    assert len(err) == 2


def test_fold_needs_prefixes():
    done = subprocess.run([ruedarun(), "-np", "2", "--fold", "--no-prefix", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and "--fold needs prefixes" in done.stderr
