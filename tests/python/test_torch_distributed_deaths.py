"""A rank that is killed in any operation is named on all others, and soon."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from c10d_deaths import VICTIM
from c10d_operations import OPERATIONS

PROGRAM = pathlib.Path(__file__).with_name("c10d_deaths.py")
SOON_SECONDS = 10  # a timeout of a group is 30 minutes
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "size, group",
    [
        (2, "default"),
        (3, "subgroup"),
        pytest.param(3, "default", marks=SLOW),
        pytest.param(2, "subgroup", marks=SLOW),
    ],
)
def test_a_rank_killed_in_any_operation_is_named(size, group):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAM, str(size), group],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=400,
        env=CLEAN,
    )
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["operation"] for each in outcomes] == list(OPERATIONS)
    for outcome in outcomes:
        reports = sorted(outcome["reports"], key=lambda report: report["rank"])
        survivors = [rank for rank in range(size) if rank != VICTIM]
        assert [report["rank"] for report in reports] == survivors, (outcome, done.stderr)
        for report in reports:
            assert report.get("lost") == VICTIM and report["is_of_pytorch"], outcome
            assert f"rank {VICTIM}" in report["text"], outcome
            assert report["seconds"] < SOON_SECONDS, outcome
        codes = outcome["codes"]
        assert codes.pop(VICTIM) == -9 and not any(codes), (outcome, done.stderr)
