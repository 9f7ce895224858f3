"""A few cells of the fault matrix; ``-m slow`` runs every fault in every phase."""

import pathlib
import subprocess
import sys

import pytest
from worlds import ruedarun

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/fault_matrix"


def run_matrix(*arguments, timeout):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--ruedarun", ruedarun(), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sample_of_the_fault_matrix():
    run_matrix("--sample", timeout=600)


@pytest.mark.slow
def test_every_fault_in_every_phase():
    run_matrix("--short", timeout=3000)
