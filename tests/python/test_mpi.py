"""The MPI transport under a real mpirun: all collectives, other users of MPI, wrong and dead worlds."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import namespaces
import pytest
import rueda
from rueda import _ffi
from test_launchers import MPICH, OPENMPI, SECONDS, clean, run
from worlds import launch, ruedarun

HERE = pathlib.Path(__file__).resolve().parent
SCENES = str(HERE / "mpi_scenes.py")
MPIRUN = [OPENMPI, "--allow-run-as-root", "--oversubscribe"]
MPI_ONLY = {"RUEDA_TRANSPORT": "mpi-only"}


def until(true):
    """Waits for something that is about to be so."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def library():
    return pathlib.Path(_ffi.library_path()).resolve()


@pytest.fixture(autouse=True)
def built_with_mpi():
    if shutil.which(OPENMPI) is None or not (library().parent / "librueda_mpi.so").exists():
        pytest.skip("rueda was built without Open MPI (scripts/packages.txt)")


def scene(size, name, env=None, options=()):
    command = [*MPIRUN, *options, "-np", size, sys.executable, SCENES, name]
    return run(command, {**MPI_ONLY, **(env or {})})


def pytest_under_mpirun(*arguments):
    """Runs modules of these tests again, with mpirun instead of ruedarun."""
    env = {**MPI_ONLY, "RUEDA_TEST_LAUNCHER": " ".join([*MPIRUN, "-np"])}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        cwd=HERE,
        env=clean(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * SECONDS,
    )


def test_every_collective_dtype_and_op_on_mpi():
    # Three ranks: every other size is among the slow ones.
    done = pytest_under_mpirun("test_numpy_collectives.py", "-k", "3")
    assert "passed" in done.stdout
    assert done.returncode == 0, done.stdout


def test_ranks_that_disagree_are_named_on_mpi():
    done = pytest_under_mpirun("test_disagreement.py", "-k", "3")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_torch_and_process_sets_and_every_size_on_mpi():
    done = pytest_under_mpirun(
        "test_numpy_collectives.py", "test_disagreement.py", "test_torch_table.py", "test_process_sets.py"
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("chunk", ["1000", "262144"])
def test_tensors_are_larger_than_chunks(chunk):
    code, output, reports = scene(4, "chunks", {"RUEDA_MPI_CHUNK_BYTES": chunk})
    assert code == 0, output
    assert [found["rank"] for found in reports] == [0, 1, 2, 3]
    assert all(found["mpi"] > 1_000_000 and found["tcp"] == 0 for found in reports)


@pytest.mark.slow
def test_more_than_2_gib():
    code, output, reports = scene(2, "more_than_2_gib")
    assert code == 0, output
    assert [found["ends"] for found in reports] == [[1, 2, 3, 4]] * 2
    assert [found["rest"] for found in reports] == [0, 0]


def test_mpi_that_the_program_initialised_is_used_and_left_alone():
    code, output, reports = scene(2, "beside_mpi4py")
    assert code == 0, output
    assert [(found["finalised"], found["code"]) for found in reports] == [(0, 0), (0, 0)]


def test_mpi4py_and_rueda_use_mpi_side_by_side():
    pytest.importorskip("mpi4py")
    code, output, reports = scene(3, "with_mpi4py")
    assert code == 0, output
    assert [(found["late"], found["sums"], found["finalised"]) for found in reports] == [(6.0, [9.0] * 3, False)] * 3


def test_a_program_that_finalises_mpi_first_ends_collectives_with_an_error():
    code, output, reports = scene(2, "the_program_ends_mpi_first")
    assert len(reports) == 2, output
    # Both do it at about the same time: whose library notices first tells the other, or just ends.
    assert any("MPI has been finalised" in found["text"] for found in reports), reports
    assert all("MPI has been finalised" in found["text"] or "was lost" in found["text"] for found in reports), reports


def test_mpi_without_threads_is_refused():
    _, output, reports = scene(2, "mpi_without_threads")
    assert len(reports) == 2, output
    assert all("MPI_THREAD_MULTIPLE" in found["text"] for found in reports), reports


def test_a_killed_rank_is_named():
    # mpirun itself would kill the survivors within a second.
    options = ["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0"]
    _, output, reports = scene(3, "a_rank_is_killed", options=options)
    assert [found["rank"] for found in reports] == [0, 2], output
    assert all("rank 1 (pid" in found["text"] for found in reports), reports


def test_another_mpis_launcher_is_refused():
    if shutil.which(MPICH) is None:
        pytest.skip("MPICH is not installed")
    code, output, _ = run([MPICH, "-n", 2, sys.executable, SCENES, "chunks"], MPI_ONLY)
    assert code != 0
    assert "sees a world of 1 processes, but this job has 2 ranks" in output
    assert "PMI_SIZE=2" in output and "start it with the mpirun of that library" in output


def test_a_library_without_the_plugin_answers_politely(tmp_path):
    alone = tmp_path / "librueda.so"
    shutil.copy(library(), alone)
    code, output, _ = scene(2, "chunks", {"RUEDA_LIBRARY": str(alone)})
    assert code != 0
    assert "librueda_mpi.so" in output and "libopenmpi-dev" in output


def test_ruedarun_cannot_make_an_mpi_world():
    code, output = launch(2, [sys.executable, SCENES, "chunks"], env=MPI_ONLY)
    assert code != 0
    assert "needs ranks that mpirun has started: `ruedarun --mpi" in output and "mpirun -np 2" in output


# `ruedarun --mpi`: mpirun, found and looked after.


def under_ruedarun(size, *command, options=(), env=None, **others):
    return run([ruedarun(), "--mpi", "-np", size, *options, *command], env, **others)


def test_ruedarun_starts_the_job_under_mpirun():
    options = ("--verbose", "-x", "RUEDA_TRANSPORT=mpi-only")
    code, output, reports = under_ruedarun(3, sys.executable, SCENES, "chunks", options=options)
    assert code == 0, output
    assert [found["rank"] for found in reports] == [0, 1, 2]
    assert all(found["mpi"] > 1_000_000 and found["tcp"] == 0 for found in reports)
    assert "[1,2]<stdout>:REPORT" in output
    assert re.search(r"ruedarun: Open MPI v[\d.]+, started as: /.*mpirun\S* -np 3 ", output), output


def test_slots_a_hostfile_and_more_arguments_are_passed_on(tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    options = ["--hostfile", tmp_path / "hosts", "--output-filename", tmp_path / "out", "--no-prefix"]
    more = ["--mpi-args", "--mca btl 'self,tcp' -x GIVEN=yes"]
    script = "echo $OMPI_MCA_btl $GIVEN $RUEDA_TRANSPORT $OMPI_COMM_WORLD_LOCAL_SIZE; echo bad >&2"
    code, output, _ = under_ruedarun(2, "sh", "-c", script, options=[*options, *more])
    assert code == 0, output
    assert output.splitlines().count("self,tcp yes mpi 2") == 2, output
    for rank in range(2):
        assert (tmp_path / "out" / f"rank.{rank}" / "stdout").read_text() == "self,tcp yes mpi 2\n"
        assert (tmp_path / "out" / f"rank.{rank}" / "stderr").read_text() == "bad\n"
    code, output, _ = under_ruedarun(3, "true", options=["--hostfile", tmp_path / "hosts"])
    assert code == 2 and "has 2" in output


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
def test_two_hosts_by_mpis_own_daemons(tmp_path):
    agent, key = tmp_path / "agent", tmp_path / "key"
    # As ssh would: an environment and a name of its own, and the words are for a shell there.
    agent.write_text('#!/bin/sh\nhost=$1; shift\nexec env -i "PATH=$PATH" ip netns exec $host unshare -u sh -c "hostname $host; $*"\n')
    agent.chmod(0o755)
    key.touch(0o600)
    key.write_text("the secret of one test run")
    lab = namespaces.Lab(2, number=5)
    try:
        env = {"RUEDA_KEY_FILE": str(key), "RUEDA_RENDEZVOUS": f"{lab.address(0)}:4711", "MY_TOKEN": "hidden"}
        hosts = ",".join(f"{host}:2" for host in lab.hosts)
        options = ["-H", hosts, "--rsh-agent", agent, "-x", "MY_OWN=7"]
        code, output, reports = under_ruedarun(4, sys.executable, SCENES, "between_hosts", options=options, env=env)
        assert code == 0, output
        assert [found["host"] for found in reports] == [lab.hosts[0]] * 2 + [lab.hosts[1]] * 2
        assert all(found["mpi"] > 1_000_000 and found["tcp"] == 0 for found in reports), reports
        assert all(found["shm"] > 0 and found["local"] == 2 for found in reports), reports
        assert all(found["own"] == "7" and found["token"] is None for found in reports)
    finally:
        lab.close()


def test_exit_codes_are_the_failed_ranks_under_mpirun():
    code, output, _ = under_ruedarun(2, "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK * 7))")
    assert code == 7, output
    code, output, _ = under_ruedarun(2, "sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -9 $$")
    assert code == 137, output
    code, output, _ = under_ruedarun(2, "no-such-program")
    assert code == 127 and "no-such-program" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_mpirun_and_its_ranks(number, tmp_path):
    script = f"echo $$ > {tmp_path}/$OMPI_COMM_WORLD_RANK.tmp; mv {tmp_path}/$OMPI_COMM_WORLD_RANK.tmp {tmp_path}/$OMPI_COMM_WORLD_RANK; exec sleep 1000"
    command = [ruedarun(), "--mpi", "-np", "2", "--grace-period", "1", "sh", "-c", script]
    process = subprocess.Popen(command, env=clean({}), start_new_session=True, stderr=subprocess.DEVNULL)
    pids = []
    try:
        for rank in range(2):
            until((tmp_path / str(rank)).exists)
            pids.append(int((tmp_path / str(rank)).read_text()))
        process.send_signal(number)
        code = process.wait(SECONDS)
        assert code == (-9 if number == signal.SIGKILL else 128 + number)
        for pid in pids:
            until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    finally:
        process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_what_cannot_be_is_refused_before_mpirun_starts(tmp_path):
    alone = tmp_path / "lib" / "librueda.so"
    for options, env, reason in [
        ((), {"RUEDA_TRANSPORT": "tcp"}, "contradict each other"),
        ((), {"RUEDA_LIBRARY": str(alone)}, "there is no librueda_mpi.so; .*libopenmpi-dev"),
        (("--ranks", "0"), {}, "--ranks does not work with --mpi"),
        (("-H", "localhost:1,elsewhere:1"), {}, "RUEDA_KEY_FILE"),
        (("--mpirun", "/bin/true"), {}, r"no mpirun of Open MPI v[\d.]+ was found.*openmpi-bin"),
    ]:
        code, output, _ = under_ruedarun(2, "touch", tmp_path / "started", options=options, env=env)
        assert code == 2 and re.search(reason, output, re.S), output
    if shutil.which(MPICH) is not None:
        code, output, _ = under_ruedarun(2, "true", options=("--mpirun", shutil.which(MPICH)))
        assert code == 2 and "is HYDRA" in output
    assert not (tmp_path / "started").exists()


def test_print_config_says_that_mpi_serves():
    done = subprocess.run([ruedarun(), "--mpi", "--print-config"], capture_output=True, text=True, env=clean({}))
    assert re.search(r"^RUEDA_TRANSPORT +mpi +--mpi ", done.stdout, re.M), done.stdout
    assert re.search(r"^between hosts +native algorithms over MPI", done.stdout, re.M), done.stdout


def test_horovodrun_and_run_take_mpi():
    script = "import os, rueda; rueda.init(); os.write(1, b'is %d %s\\n' % (rueda.rank(), os.environb[b'RUEDA_TRANSPORT']))"
    command = [sys.executable, "-m", "rueda.compat.horovodrun", "--mpi", "-np", 2, "--mpi-args=--mca btl self,tcp"]
    code, output, _ = run([*command, sys.executable, "-c", script], {"RUEDA_RUEDARUN": ruedarun()})
    assert code == 0, output
    assert {f"[1,{rank}]<stdout>:is {rank} mpi" for rank in range(2)} <= set(output.splitlines())
    assert rueda.run(os.getenv, args=("RUEDA_TRANSPORT",), num_proc=2, use_mpi=True) == ["mpi"] * 2
