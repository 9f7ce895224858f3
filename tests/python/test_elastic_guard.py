"""Guarded training in elastic jobs of real ranks that are killed: a loss costs no step, and nobody leaves the function."""

import os
import pathlib
import random
import sys

import pytest
from elastic_model import replay
from worlds import launch

SCRIPT = pathlib.Path(__file__).with_name("guard_script.py")
SHRINK = "--min-np", "1", "--on-failure", "shrink"
PHASES = "backward", "hook", "step", "vote", "voted", "applied", "commit", "next"


def job(folder, ranks, steps, every, size, *faults, options=SHRINK):
    """Runs one that ends well; what each member has said, as lists of words."""
    code, output = launch(ranks, [sys.executable, SCRIPT, folder, steps, every, size, *faults], options=options)
    said = {int(name): [line.split() for line in (folder / name).read_text().splitlines()] for name in os.listdir(folder)}
    assert code == 0, (output, said)
    return said


def check(said, steps):
    """All members tell one story, and a replay in one process tells it, too. Returns who was in each step."""
    story = {}
    for lines in said.values():
        for word, *rest in lines:
            if word == "did":
                assert story.setdefault(int(rest[0]), rest[1:]) == rest[1:], rest
    assert sorted(story) == list(range(len(story))) and len(story) >= steps
    sums, contributions = [0] * 32, []
    for step in range(len(story)):
        contributors, told, _ = story[step]
        now = list(map(int, told.split(",")))
        contributions.append({member for member in range(32) if now[member] != sums[member]})
        assert all(now[each] - sums[each] == step + 1 for each in contributions[-1])  # once, not twice
        assert len(contributions[-1]) == int(contributors)
        sums = now
    assert [story[step][2] for step in sorted(story)] == list(replay(contributions))
    ends = {tuple(line) for lines in said.values() for line in lines if line[0] == "end"}
    assert ends == {("end", str(len(story)), story[len(story) - 1][2])}
    return contributions


def trained(said, member):
    return [line for line in said[member] if line[0] == "train"]


def test_a_loss_costs_one_batch_of_the_lost_rank_and_nobody_leaves_the_function(tmp_path):
    # The only commit is the last one: whoever went back would begin anew.
    said = job(tmp_path, 3, 12, 12, 1, "1:hook:4", "0:step:8")
    contributions = check(said, 12)
    # The step before may be made again: who was lost had left its vote, and others had not.
    assert [contributions[step] for step in (0, 2, 4, 6, 8, 11)] == [{0, 1, 2}] * 2 + [{0, 2}] * 2 + [{2}] * 2
    assert len(trained(said, 2)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_is_killed_in_each_phase(tmp_path, phase):
    said = job(tmp_path, 3, 10, 2, 2, f"1:{phase}:5")
    contributions = check(said, 10)
    assert contributions[:4] == [{0, 1, 2}] * 4 and contributions[6:] == [{0, 2}] * 4
    assert len(trained(said, 0)) == len(trained(said, 2)) == 1


@pytest.mark.parametrize("second", ["healed", pytest.param("met", marks=pytest.mark.slow)])
def test_a_rank_is_killed_while_the_others_heal(tmp_path, second):
    said = job(tmp_path, 3, 10, 10, 1, "1:backward:5", f"0:{second}:2")
    contributions = check(said, 10)
    assert contributions[:4] == [{0, 1, 2}] * 4 and contributions[5:] == [{2}] * 5
    assert len(trained(said, 2)) == 1


def test_a_replacement_enters_at_a_commit(tmp_path):
    said = job(tmp_path, 2, 20, 1, 2, "1:step:5", options=("--min-np", "1"))
    contributions = check(said, 20)
    assert contributions[4] == {0, 1} and {0} in contributions and contributions[-1] == {0, 2}
    assert [line[2] for line in trained(said, 0)] == ["2", "2"] and len(trained(said, 2)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_ranks_are_killed_anywhere(tmp_path, seed):
    chance = random.Random(seed)
    victims = chance.sample(range(3), 2)
    faults = [f"{victims[0]}:{chance.choice(PHASES)}:{chance.randint(0, 9)}"]
    phase = chance.choice((*PHASES, "healed", "met"))
    faults.append(f"{victims[1]}:{phase}:{2 if phase in ('healed', 'met') else chance.randint(0, 9)}")
    check(job(tmp_path, 3, 12, chance.choice([1, 3]), 0, *faults), 12)
