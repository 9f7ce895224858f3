"""Elastic jobs of real ranks that are killed in every phase, the heal included: no acknowledged step is lost or doubled."""

import os
import pathlib
import random
import sys

import pytest
from worlds import launch

SCRIPT = pathlib.Path(__file__).with_name("elastic_script.py")
PHASES = "backward", "step", "commit", "done"


def job(folder, ranks, steps, size, *faults, options=("--min-np", "1")):
    """Runs one; returns what each member has said, as lists of words."""
    command = [sys.executable, SCRIPT, folder, steps, size, *faults]
    code, output = launch(ranks, command, options=options)
    said = {int(name): [line.split() for line in (folder / name).read_text().splitlines()] for name in os.listdir(folder)}
    assert code == 0, (output, said)
    return said


def check(said, steps):
    """All members tell one story, and it is the one that a single observer would have counted."""
    story = {}
    for lines in said.values():
        for word, step, *rest in lines:
            if word == "did":
                assert story.setdefault(int(step), rest) == rest, step
    total = 0
    for step in sorted(story):
        size, told, _ = story[step]
        total += (step + 1) * int(size)
        assert total == int(told), step
    assert list(story) and sorted(story) == list(range(len(story))) and len(story) >= steps
    ends = {tuple(line) for lines in said.values() for line in lines if line[0] == "end"}
    assert ends == {("end", str(len(story)), str(total), story[len(story) - 1][2])}
    return story


def sizes(said, member):
    return [int(line[3]) for line in said[member] if line[0] == "epoch"]


def test_ranks_are_killed_one_after_another_in_every_phase(tmp_path):
    # Two of them while the others heal: in a callback, and in the sync.
    faults = "1:backward:5", "3:reset:5", "2:commit:12", "4:sync:3", "5:step:20"
    said = job(tmp_path, 6, 25, 1, *faults, options=("--min-np", "1", "--on-failure", "shrink"))
    story = check(said, 25)
    assert [int(story[step][0]) for step in (4, 5, 11, 13, 20)] == [6, 4, 4, 2, 1]
    assert [member for member, lines in said.items() if lines[-1][0] == "end"] == [0]


def test_a_lost_rank_is_replaced_while_the_others_train(tmp_path):
    said = job(tmp_path, 3, 10, 3, "0:step:5", options=("--min-np", "2"))
    story = check(said, 10)
    assert sizes(said, 1) == sizes(said, 2) == [3, 2, 3] and sizes(said, 3) == [3]
    assert {int(size) for size, *_ in story.values()} == {2, 3}


def test_a_newcomer_that_dies_costs_the_others_nothing(tmp_path):
    said = job(tmp_path, 3, 10, 3, "1:done:5", "3:sync:0", options=("--min-np", "2"))
    check(said, 10)
    assert sizes(said, 0)[0] == sizes(said, 0)[-1] == 3 and sizes(said, 4) == [3] and said[3] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_ranks_are_killed_anywhere(tmp_path, seed):
    chance = random.Random(seed)
    ranks = chance.randint(3, 5)
    victims = chance.sample(range(ranks), 2)
    faults = [f"{victims[0]}:{chance.choice(PHASES)}:{chance.randint(0, 20)}"]
    kind = chance.choice((*PHASES, "reset", "sync", "synced"))
    faults.append(f"{victims[1]}:{kind}:{chance.randint(0, 3 if kind.startswith('sync') else 20)}")
    said = job(tmp_path, ranks, 25, ranks, *faults)
    check(said, 25)
