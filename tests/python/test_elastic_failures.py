"""Elastic jobs whose ranks fail by themselves, or end before the others: both leave in order, as far as peers see."""

import sys

import pytest
from test_elastic_jobs import check, start
from worlds import launch


# The next test raises, too, in a reset callback.
@pytest.mark.parametrize("how, code", [pytest.param("raise", 1, marks=pytest.mark.slow), ("3", 3)])
def test_a_rank_that_fails_in_its_function_is_replaced(tmp_path, how, code):
    code_of_job, output, said = start(
        tmp_path, 3, 10, 3, f"1:backward:5:{how}", options=("--min-np", "2")
    )
    assert code_of_job == 0, (output, said)
    story = check(said, 10)
    assert {int(size) for size, *_ in story.values()} == {2, 3}
    assert said[1][-1][:2] == ["did", "4"] and said[3][-1][0] == "end"
    lost = [line for line in output.splitlines() if "was lost" in line]
    assert (
        len(lost) == 1 and "rank 1 on " in lost[0] and f"exited with code {code}" in lost[0]
    ), output
    assert "2 ranks go on from commit 5" in lost[0], output


def test_a_rank_that_fails_in_a_heal_leads_to_the_next_one(tmp_path):
    faults = "1:backward:5", "2:reset:5:raise"
    code, output, said = start(
        tmp_path, 4, 10, 2, *faults, options=("--min-np", "1", "--on-failure", "shrink")
    )
    assert code == 0, (output, said)
    story = check(said, 10)
    assert [int(story[step][0]) for step in (4, 5)] == [4, 2]
    assert "rank 2 on " in output or "rank 1 on " in output, output


def test_who_trains_on_when_another_has_ended_is_told_so(tmp_path):
    code, output, said = start(tmp_path, 3, 10, 3, "1:done:5:0", options=("--min-np", "1"))
    assert code == 1, (output, said)
    assert "has been shut down without submitting it" in output, output
    assert [said[member][-1][:2] for member in said] == [["did", "5"]] * 3 and len(said) == 3


def test_ranks_that_nobody_comes_to_any_more_are_not_left_to_wait(tmp_path):
    # Rank 0 has enough when it hears of the loss. Rank 1 heals, and would train until there are three ranks again. (With
    # replacements one could be there before rank 0's process has ended.)
    faults = "2:backward:5", "0:lost:5:0"
    options = ("--min-np", "1", "--elastic-timeout", "3", "--on-failure", "shrink")
    code, output, said = start(tmp_path, 3, 10, 3, *faults, options=options)
    assert code == 124, (output, said)
    assert (
        "has ended with code 0, so no rank is started any more; the others have 3 s to end"
        in output
    ), output
    assert "still trained without it when --elastic-timeout was over" in output, output
    assert [line[3] for line in said[1] if line[0] == "epoch"] == ["3", "1"]


DISAGREE = """
import time

import numpy as np, rueda
import rueda.elastic
from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError

rueda.init()

@rueda.elastic.run
def train(state):
    try:
        rueda.allreduce(np.ones(1 + rueda.rank()), name="mine")
    except HorovodInternalError:
        end = time.monotonic() + 100
        while rueda.rank() == 1 and not runtime.epoch_ended(1):  # the other raises it at once, and ends
            assert time.monotonic() < end
        raise

train(rueda.elastic.ObjectState(rueda.broadcast_object, rueda.rank, step=0))
"""


def test_what_ranks_disagree_on_is_not_tried_again_by_who_is_slower(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(DISAGREE)
    code, output = launch(
        2, [sys.executable, program], options=("--min-np", "1", "--on-failure", "shrink")
    )
    assert code == 1 and "AssertionError" not in output, output
    lines = [line for line in output.splitlines() if "HorovodInternalError: Mismatched ALLREDUCE tensor shapes" in line]
    assert {line[:12] for line in lines} >= {"[0]<stderr>:", "[1]<stderr>:"} and "go on" not in output, output
