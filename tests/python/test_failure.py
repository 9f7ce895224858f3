"""A rank that dies: the others raise an error that names it, under a generous deadline."""

import os
import re
import signal
import socket
import sys

import numpy as np
import pytest
import rueda as hvd
from expect import eventually, raises, same
from rueda import _marks
from rueda._runtime import runtime
from worlds import kill_once_all_are_here, launch, run_ranks

# Survivors are given time to report, also on a busy machine.
PATIENT = ["--grace-period", "60"]


def survivors_raise(outcome, dead):
    """The killed rank reports nothing; all others raised an error that names it."""
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank, report in enumerate(outcome.reports):
        if rank == dead:
            assert not report
            continue
        assert report, f"rank {rank} reported nothing:\n{outcome.output}"
        (only,) = report.values()
        assert only.get("result") == "raised", f"rank {rank}: {only}\n{outcome.output}"


def expect_loss(dead, call):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends survivors after a while
    with raises(hvd.HorovodInternalError, f"rank {dead}"):
        call()
    return "raised"


def dies_in_negotiation():
    same(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, float(hvd.size())))
    kill_once_all_are_here(1)
    return expect_loss(1, lambda: hvd.allreduce(np.ones(4), name="waiting"))


def dies_while_any_is_awaited():
    handles = []
    if hvd.rank() != 1:
        handles = [hvd.allreduce_async(np.ones(4), name=f"any {i}") for i in range(3)]
    kill_once_all_are_here(1)

    def all_of_them():
        for _ in handles:
            given.append(hvd.wait_any(handles))
        assert sorted(given) == handles and hvd.wait_any(handles) is None
        hvd.synchronize(given[0])

    given = []
    return expect_loss(1, all_of_them)


def dies_among_many():
    """In the middle of a stream of large collectives, wherever that is: submitting or waiting."""

    def submit_and_wait():
        handles = [
            hvd.allreduce_async(np.ones(1_000_000, np.float32), name=f"n{i}") for i in range(50)
        ]
        if hvd.rank() == 0:
            hvd.synchronize(handles[3])
            os.kill(os.getpid(), signal.SIGKILL)
        for handle in handles + [hvd.allreduce_async(np.ones(1), name="last")]:
            hvd.synchronize(handle)

    return expect_loss(0, submit_and_wait)


def dies_while_others_compute():
    if hvd.rank() == 2:
        hvd.recv(np.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def submit_and_wait():
        handle = hvd.allreduce_async(np.ones(2), name="later")  # rank 1 may know by now
        if hvd.rank() == 0:
            hvd.send(np.zeros(1), 2)
        hvd.synchronize(handle)

    result = expect_loss(2, submit_and_wait)
    with raises(hvd.HorovodInternalError):  # and so does everything after
        hvd.allgather(np.ones(1))
    return result


def dies_in_a_process_set():
    """Its partner waits in the same set, the others are busy in a set without it."""
    pairs = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    mine = pairs[hvd.rank() // 2]
    same(hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=mine), np.full(3, 2.0))
    kill_once_all_are_here(1)

    def work():
        while True:
            hvd.allreduce(np.ones(1000), name="busy", process_set=mine)

    result = expect_loss(1, work)
    with raises(hvd.HorovodInternalError, "rank 1"):
        hvd.remove_process_set(mine)
    return result


def dies_after_a_step():
    """The error says who, where, what it did last and why; the same on all. The rest of why comes later."""
    for _ in range(3):
        _marks.begin_step()  # as the wrapped optimizers do
    same(hvd.allreduce(np.ones(3), op=hvd.Sum, name="first"), np.full(3, float(hvd.size())))
    kill_once_all_are_here(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        hvd.allreduce(np.ones(4), name="second")
    except hvd.RankLostError as error:
        assert isinstance(error, hvd.HorovodInternalError)
        assert error.rank == 1 and f"rank 1 (pid {error.pid} on {error.host})" in str(error)
        assert error.operation == "allreduce.first" and error.operations == 1, error.operation
        assert error.step == 3, error.step
        assert error.host == socket.gethostname(), error.host
        assert error.cause, str(error)
        eventually(lambda: runtime.lost().cause_is_final)
        assert b"killed by signal 9 (SIGKILL)" in runtime.lost().cause
        return "raised"
    return "nothing was raised"


def leaves_early():
    """A clean shutdown while peers still need the rank is an error that names it too."""
    if hvd.rank() == 1:
        hvd.shutdown()
        return "left"
    return expect_loss(1, lambda: hvd.allreduce(np.ones(1), name="needed"))


def test_a_rank_killed_before_it_submits():
    survivors_raise(run_ranks(3, dies_in_negotiation, options=PATIENT), dead=1)


def test_a_rank_killed_ends_a_wait_for_any_of_several():
    survivors_raise(run_ranks(3, dies_while_any_is_awaited, options=PATIENT), dead=1)


def test_a_rank_killed_among_collectives_in_flight():
    survivors_raise(run_ranks(2, dies_among_many, options=PATIENT), dead=0)


def test_a_rank_killed_while_others_compute():
    survivors_raise(run_ranks(3, dies_while_others_compute, options=PATIENT), dead=2)


def test_a_rank_killed_in_a_process_set_is_named_in_all():
    survivors_raise(run_ranks(4, dies_in_a_process_set, options=PATIENT), dead=1)


def test_the_error_of_a_lost_rank_has_its_attributes():
    survivors_raise(run_ranks(3, dies_after_a_step, options=PATIENT), dead=1)


def test_a_rank_that_leaves_early():
    outcome = run_ranks(2, leaves_early, manual=False, options=PATIENT)
    assert [r["leaves_early"].get("result") for r in outcome.reports] == ["raised", "left"]


def raises_alone():
    """Its interpreter leaves the job in order, with a traceback; its peer fails first."""
    if hvd.rank() == 1:
        raise ZeroDivisionError("the true reason")
    hvd.allreduce(np.ones(1), name="needed")


def test_the_launcher_names_the_rank_that_raised_and_not_the_one_that_noticed():
    outcome = run_ranks(2, raises_alone, options=PATIENT)
    last = [line for line in outcome.output.splitlines() if line.startswith("ruedarun: ")]
    assert last[0].startswith("ruedarun: rank 1 (pid") and "failed:" in last[0], outcome.output
    assert any("rank 0 reported:" in line for line in last), outcome.output


def test_the_launcher_returns_a_failing_ranks_code():
    import sys

    code, output = launch(
        2, [sys.executable, "-c", "import rueda; rueda.init(); exit(rueda.rank() * 7)"]
    )
    assert code == 7, output
    code, output = launch(2, [sys.executable, "-c", "import rueda; rueda.init()"])
    assert code == 0, output  # without shutdown: the exit does it


@pytest.mark.parametrize("signal, cause", [("SIGKILL", "it ended without leaving the job"), ("SIGABRT", "crashed with SIGABRT")])
def test_a_lost_rank_is_a_failure_though_every_command_ends_with_0(signal, cause, tmp_path):
    import shlex
    import sys

    program = (
        "import os, signal, numpy, rueda; rueda.init()\n"
        "rueda.allreduce(numpy.ones(3), name='x')\n"
        f"if rueda.rank() == 1: os.kill(os.getpid(), signal.{signal})\n"
        "rueda.allreduce(numpy.ones(3), name='y')\n"
    )
    command = shlex.join([sys.executable, "-c", program])
    options = [*PATIENT, "--flight-recorder", str(tmp_path / "flight")]
    code, output = launch(3, ["sh", "-c", command + "; true"], options=options)
    assert code == 1, output
    last = [line for line in output.splitlines() if line.startswith("ruedarun: ")]
    assert "rank 1 (pid" in last[1] and f"failed: {cause}, although its command" in last[1], output
    assert last[-1] == "ruedarun: exit code 1", output
    assert "the flight recorders are in" in last[0] and any((tmp_path / "flight").iterdir()), output


def test_a_place_that_contradicts_itself_is_refused():
    import subprocess
    import sys

    program = "import rueda\ntry: rueda.init()\nexcept ValueError as e: print('refused', e)"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RUEDA_RANK": "3", "RUEDA_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout.startswith("refused"), run.stdout + run.stderr
    assert "RUEDA_" in run.stdout


def test_the_headline_names_the_process_in_a_shell_that_has_failed(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text("import os, sys, rueda\nrueda.init()\nprint('I am', os.getpid(), flush=True)\nsys.exit(3)\n")
    code, output = launch(1, ["sh", "-c", f"{sys.executable} {script}; exit $?"])
    assert code == 3, output
    pid = re.search(r"I am (\d+)", output)[1]
    assert f"rank 0 (pid {pid}) failed: exited with code 3" in output, output
