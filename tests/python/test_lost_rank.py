"""The class of the error does not depend on who started the ranks, nor on when one of them died.

Without an agent the verdict comes from connections alone: an operation may end a moment before the
whole job does, and during init there is no job yet.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from expect import eventually
from rueda import _ffi
from rueda.common.exceptions import HorovodInternalError, RankLostError
from test_launchers import clean
from worlds import launch

PROGRAM = textwrap.dedent(
    """
    import json, os, signal, sys, numpy as np
    import rueda as hvd

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kind, folder = sys.argv[1:]
    rank = int(os.environ["RUEDA_TEST_RANK"] if "RUEDA_TEST_RANK" in os.environ else os.environ["RUEDA_RANK"])

    def tell(error):
        told = {"class": type(error).__name__, "rank": getattr(error, "rank", None),
                "pid": getattr(error, "pid", None), "host": getattr(error, "host", None), "text": str(error)}
        with open(os.path.join(folder, f"told.{rank}"), "w") as file:
            json.dump(told, file)
        os._exit(1)

    def sockets(pid):
        found = 0
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
            except OSError:
                pass
        return found

    if kind == "init":
        with open(os.path.join(folder, f"pid.{rank}.new"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, file.name[:-4])
        if rank == 2:  # waits until rank 1 waits for it in init, having met the others
            victim = os.path.join(folder, "pid.1")
            while not os.path.exists(victim):
                pass
            pid = int(open(victim).read())
            while sockets(pid) < 2:
                pass
            os.kill(pid, signal.SIGKILL)
            signal.pause()
    try:
        hvd.init()
        x = np.ones(100_000, np.float32)
        hvd.allreduce(x, name="x")
        hvd.barrier()
        if hvd.rank() == 1:
            hvd.recv(x[:1], 0), hvd.recv(x[:1], 2)
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.send(x[:1], 1)
        hvd.recv(x, 1) if kind == "recv" else hvd.allreduce(x, name="y")
    except hvd.HorovodInternalError as error:
        tell(error)
    """
)


def told(folder, rank):
    return json.loads((folder / f"told.{rank}").read_text())


def lost(report):
    return report["class"] == "RankLostError" and report["rank"] == 1


def start_by_hand(kind, folder):
    """Three ranks whose launcher tells them their numbers and nothing else."""
    (folder / "program.py").write_text(PROGRAM)
    return [
        subprocess.Popen(
            [sys.executable, str(folder / "program.py"), kind, str(folder)],
            env=clean(
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": "3",
                    "LOCAL_WORLD_SIZE": "3",
                    "RUEDA_TEST_RANK": str(rank),
                    "RUEDA_JOB_ID": f"lost-{os.getpid()}-{kind}",
                }
            ),
        )
        for rank in range(3)
    ]


@pytest.mark.parametrize("kind", ["recv", "allreduce"])
def test_survivors_without_a_launcher_raise_the_class_of_a_lost_rank(kind, tmp_path):
    processes = start_by_hand(kind, tmp_path)
    assert [process.wait(120) for process in processes] == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        report = told(tmp_path, rank)
        assert lost(report), report
        assert report["pid"] == processes[1].pid and report["host"], report


def test_a_death_during_init_is_a_lost_rank_without_a_launcher(tmp_path):
    processes = start_by_hand("init", tmp_path)
    try:
        assert processes[0].wait(120) == 1
    finally:
        processes[2].kill()
        for process in processes:
            process.wait()
    assert lost(told(tmp_path, 0)), told(tmp_path, 0)


def test_a_death_during_init_is_a_lost_rank_under_ruedarun(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    code, output = launch(3, [sys.executable, tmp_path / "program.py", "init", tmp_path])
    assert code == 128 + signal.SIGKILL, output
    eventually((tmp_path / "told.0").exists, 1)
    report = told(tmp_path, 0)
    assert lost(report), report
    assert "rueda initialization failed: rank 1 (pid" in report["text"], report


def test_the_class_follows_from_the_error_alone():
    """Of an operation that ends before there is a verdict, too."""
    error = _ffi.Error()
    error.message, error.lost_rank = b"allreduce 'x': rank 1 was lost", 1
    raised = _ffi.exception(_ffi.UNAVAILABLE, error)
    assert type(raised) is RankLostError and raised.rank == 1
    error.lost_rank = -1
    assert type(_ffi.exception(_ffi.UNAVAILABLE, error)) is HorovodInternalError
