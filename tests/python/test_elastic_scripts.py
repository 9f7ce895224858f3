"""Horovod's elastic scripts in jobs whose ranks are killed, stopped or fail: the story is that of a replay in one process."""

import itertools
import pathlib
import sys

import pytest
from horovod_model import SAMPLES, replay
from worlds import launch

SCRIPT = pathlib.Path(__file__).with_name("horovod_script.py")
SHRINK = "--min-np", "1", "--on-failure", "shrink"
REPLACE = "--min-np", "1"


def start(folder, ranks, steps, size, features, *faults, options=SHRINK):
    """Runs one; returns its code, its output and what each member has said, as lists of words."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, SCRIPT, folder, steps, size, features, *faults]
    code, output = launch(ranks, command, options=("--horovod", *options))
    said = {int(path.name): [line.split() for line in path.read_text().splitlines()] for path in folder.iterdir()}
    return code, output, said


def job(folder, ranks, steps, size, features, *faults, options=SHRINK):
    """One that ends well: what its members have said, checked. Returns the numbers of ranks in its steps."""
    code, output, said = start(folder, ranks, steps, size, features, *faults, options=options)
    assert code == 0, (output, said)
    return check(said, steps, set(features.split(",")))


INEXACT = {"norm", "adasum", "average", "guard"}


def check(said, steps, features):
    story = {}
    for lines in said.values():
        for word, *rest in lines:
            if word == "did":
                assert story.setdefault(int(rest[0]), rest[1:]) == rest[1:], rest
    assert sorted(story) == list(range(len(story))) and len(story) >= steps
    sizes, total = [], 0
    for step in range(len(story)):
        sizes.append(int(story[step][0]))
        total += (step + 1) * sizes[-1]
        assert int(story[step][2]) == total
    if not features & INEXACT:
        assert [story[step][3] for step in range(len(story))] == list(replay(sizes, features))
    ends = {tuple(line) for lines in said.values() for line in lines if line[0] == "end"}
    assert ends == {("end", str(len(story)), str(total), story[len(story) - 1][3])}
    if "sampler" in features:
        check_samples(said, story, "guard" in features)
    return sizes


def check_samples(said, story, guarded):
    """Each sample was seen in each round, and only so many twice as the last batches had to be filled up."""
    rounds = {}
    for lines in said.values():
        mine = {}
        for line in lines:
            if line[0] == "saw":
                _, step, epoch, number, samples = line
                # What is done again in an epoch, or by a guard in the next, has the same samples.
                mine[(int(step), story[int(step)][1] if guarded and int(step) in story else epoch)] = int(number), samples
        for (step, epoch), (number, samples) in mine.items():
            if step in story and story[step][1] == epoch:
                rounds.setdefault(number, []).extend(map(int, samples.split(",")))
    whole = max(rounds)
    for number, samples in rounds.items():
        assert number == whole or set(samples) == set(range(SAMPLES)), number
        assert len(samples) - len(set(samples)) < 8, sorted(samples)


# Ranks, features, options, faults, and how many ranks are in the steps before and after.
JOBS = [
    (3, "amp,scaler,schedule,rescale,objects", SHRINK, ["1:saved:4", "2:restore:0"], [3, 1]),
    (4, "sampler", SHRINK, ["1:saved:4", "2:reset:0", "3:sync:1"], [4, 1]),
    (3, "sets,join,two,accumulate", SHRINK, ["0:set:4"], [3, 2]),
    (2, "reset,amp,private,custom", REPLACE, ["1:hook:4:7"], [2, 1, 2]),
]
MORE_JOBS = [
    (3, "custom", REPLACE, ["1:hook:4"], [3, 2, 3]),
    (3, "sampler", REPLACE, ["1:hook:4"], [3, 2, 3]),
    (3, "sampler,reset", SHRINK, ["1:commit:3", "2:reset:0"], [3, 1]),
    (3, "sampler,guard", SHRINK, ["1:step:3"], [3, 2]),
    (3, "amp,scaler,schedule", REPLACE, ["1:commit:4", "3:sync:0"], [3, 2, 3]),
    (3, "accumulate,grouped", REPLACE, ["1:backward:4"], [3, 2, 3]),
    (3, "two,private", REPLACE, ["0:stepped:4"], [3, 2, 3]),
    (3, "sets,objects", REPLACE, ["1:set:4"], [3, 2, 3]),
    (3, "sets", SHRINK, ["0:set:4", "1:set:6"], [3, 2, 1]),
    (3, "join,async", REPLACE, ["1:join:4"], [3, 2, 3]),
    (3, "arena", REPLACE, ["0:hook:4"], [3, 2, 3]),
    (3, "norm", REPLACE, ["1:backward:4"], [3, 2, 3]),
    (3, "fp16", REPLACE, ["1:step:4"], [3, 2, 3]),
    (3, "adasum", REPLACE, ["1:step:4"], [3, 2, 3]),
    (3, "sparse", REPLACE, ["1:step:4"], [3, 2, 3]),
    (3, "guard,amp,scaler", REPLACE, ["1:hook:4"], [3, 2, 3]),
    (3, "guard,accumulate,two", SHRINK, ["1:step:4", "2:step:8"], [3, 2, 1]),
    (3, "twice,average", REPLACE, ["1:hook:4"], [3, 2, 3]),
    (2, "compile", SHRINK, ["1:hook:4"], [2, 1]),
    (3, "amp", SHRINK, ["1:reset:0:raise", "0:hook:4"], [3, 1]),
    (3, "amp", SHRINK, ["1:hook:4:stop"], [3, 2]),
    (3, "guard", SHRINK, ["1:hook:4:stop"], [3, 2]),
    (3, "amp", SHRINK, ["2:reset:0:stop", "1:hook:4"], [3, 1]),
    (3, "amp", REPLACE, ["3:sync:0:stop", "1:hook:4"], [3, 2, 3]),
]


@pytest.mark.parametrize(
    "ranks, features, options, faults, sizes",
    [*JOBS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_JOBS)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_script_of_horovod_survives_its_ranks(tmp_path, ranks, features, options, faults, sizes):
    again = ranks if options is REPLACE else 0
    found = job(tmp_path, ranks, 12, again, features, *faults, options=options)
    assert [size for size, _ in itertools.groupby(found)] == sizes
