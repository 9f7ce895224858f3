"""A few cells of the fault matrix; ``-m slow`` runs every fault in every phase."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from worlds import ruedarun

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/fault_matrix"


def start_matrix(*arguments, timeout):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "RUEDA_RUEDARUN": ruedarun()},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_matrix(*arguments, timeout):
    done = start_matrix(*arguments, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sample_of_the_fault_matrix():
    run_matrix("--sample", "--jobs", 2, timeout=600)  # they mostly wait


def test_a_sample_of_heals():
    run_matrix("--heal", "--sample", "--jobs", 2, timeout=600)


@pytest.mark.slow
def test_every_loss_in_every_phase_of_an_elastic_job():
    run_matrix("--heal", "--short", timeout=3000)


@pytest.mark.slow
def test_every_fault_in_every_phase():
    run_matrix("--short", timeout=3000)


def test_the_matrix_goes_on_from_the_results_it_has(tmp_path):
    cell, results = "exit_1,init,shm,other", tmp_path / "results"
    first = start_matrix("--cell", cell, "--results", results, timeout=300)
    assert first.returncode == 0 and "1 runs, 0 failed" in first.stdout, first.stdout + first.stderr
    kept = json.loads(results.read_text())
    assert kept["cell"] == cell and kept["failures"] == []
    # What is in the file is believed, not run again, and counts.
    results.write_text(json.dumps({**kept, "failures": ["(a) for this test"]}) + "\n")
    second = start_matrix("--cell", cell, "--results", results, timeout=300)
    assert second.returncode == 1 and "1 runs, 1 failed" in second.stdout, second.stdout
    assert cell not in second.stdout  # nothing was run
    assert len(results.read_text().splitlines()) == 1
