"""The MPI transport under a real mpirun: all collectives, other users of MPI, wrong and dead worlds."""

import pathlib
import shutil
import subprocess
import sys

import pytest
from rueda import _ffi
from test_launchers import MPICH, OPENMPI, SECONDS, clean, reports_in, run

HERE = pathlib.Path(__file__).resolve().parent
SCENES = str(HERE / "mpi_scenes.py")
MPIRUN = [OPENMPI, "--allow-run-as-root", "--oversubscribe"]
MPI_ONLY = {"RUEDA_TRANSPORT": "mpi-only"}


def library():
    return pathlib.Path(_ffi.library_path()).resolve()


@pytest.fixture(autouse=True)
def built_with_mpi():
    if shutil.which(OPENMPI) is None or not (library().parent / "librueda_mpi.so").exists():
        pytest.skip("rueda was built without Open MPI (scripts/packages.txt)")


def scene(size, name, env=None, options=()):
    command = [*MPIRUN, *options, "-np", size, sys.executable, SCENES, name]
    return run(command, {**MPI_ONLY, **(env or {})})


def pytest_under_mpirun(*modules):
    """Runs modules of these tests again, with mpirun instead of ruedarun."""
    env = {**MPI_ONLY, "RUEDA_TEST_LAUNCHER": " ".join([*MPIRUN, "-np"])}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *modules],
        cwd=HERE,
        env=clean(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * SECONDS,
    )


def test_every_collective_dtype_and_op_on_mpi():
    done = pytest_under_mpirun("test_numpy_collectives.py")
    assert done.returncode == 0, done.stdout


def test_ranks_that_disagree_are_named_on_mpi():
    done = pytest_under_mpirun("test_disagreement.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_torch_and_process_sets_on_mpi():
    done = pytest_under_mpirun("test_torch_table.py", "test_process_sets.py")
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
    from worlds import launch

    code, output = launch(2, [sys.executable, SCENES, "chunks"], env=MPI_ONLY)
    assert code != 0
    assert "needs ranks that mpirun has started" in output and "mpirun -np 2" in output
