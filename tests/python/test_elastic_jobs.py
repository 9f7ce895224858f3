"""Elastic jobs of real ranks that are killed in every phase, the heal included: no acknowledged step is lost or doubled."""

import pathlib
import random
import subprocess
import sys

import pytest
from worlds import launch

SCRIPT = pathlib.Path(__file__).with_name("elastic_script.py")
PHASES = "backward", "step", "commit", "done"


def said_in(folder):
    """What each member has said, as lists of words."""
    return {int(path.name): [line.split() for line in path.read_text().splitlines()] for path in folder.iterdir()}


def start(folder, ranks, steps, size, *faults, options=("--min-np", "1"), checkpoint=None, env=()):
    """Runs one; returns its code, its output and what each member has said, as lists of words."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, SCRIPT, folder, steps, size, *faults]
    env = dict(env) | ({"TEST_CHECKPOINT": str(checkpoint)} if checkpoint else {})
    code, output = launch(ranks, command, options=options, env=env)
    return code, output, said_in(folder)


def job(*arguments, **options):
    """What each member of one that ends well has said."""
    code, output, said = start(*arguments, **options)
    assert code == 0, (output, said)
    return said


def check(said, steps, story=()):
    """All members tell one story, and it is the one that a single observer would have counted.

    ``story``: what went before them.
    """
    story = dict(story)
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
    # After the commit that 2 dies in, 4 has that of before or this one.
    faults = "1:backward:5", "3:reset:5", "2:commit:12", "4:resync:12", "4:resync:13", "5:step:20"
    said = job(tmp_path, 6, 25, 1, *faults, options=("--min-np", "1", "--on-failure", "shrink"))
    story = check(said, 25)
    # What dies after its backward pass may have given all its gradients: that step counts, with it or without it.
    assert [int(story[step][0]) for step in (4, 5, 11, 13, 19, 21)] == [6, 4, 4, 2, 2, 1]
    assert [member for member, lines in said.items() if lines[-1][0] == "end"] == [0]


@pytest.mark.parametrize("victims", [pytest.param((2,), marks=pytest.mark.slow), (0, 3)], ids=str)
def test_ranks_that_are_killed_while_all_are_in_their_reset_callbacks_are_one_more_loss(tmp_path, victims):
    """The others are in theirs, in a collective, which ends with the loss: another epoch, and callbacks anew."""
    faults = ["1:backward:5", *(f"{victim}:reset:5" for victim in victims)]
    left = sorted({0, 2, 3, 4} - set(victims))
    said = job(tmp_path, 5, 10, len(left), *faults, options=("--min-np", "1", "--on-failure", "shrink"), env={"TEST_RESET_TALKS": "1"})
    story = check(said, 10)
    assert [int(story[step][0]) for step in (4, 6)] == [5, len(left)]
    for member in left:
        assert sizes(said, member) == [5, len(left)]
        epochs = [int(line[1]) for line in said[member] if line[0] == "reset"]
        assert len(epochs) == 2 and epochs[0] < epochs[1], said[member]
    assert [sum(line[0] == "reset" for line in said[victim]) for victim in victims] == [1] * len(victims)
    assert all(said[victim][-1][0] == "reset" for victim in victims)


def test_a_lost_rank_is_replaced_while_the_others_train(tmp_path):
    said = job(tmp_path, 3, 10, 3, "0:step:5", options=("--min-np", "2"))
    story = check(said, 10)
    assert sizes(said, 1) == sizes(said, 2) == [3, 2, 3] and sizes(said, 3) == [3]
    assert {int(size) for size, *_ in story.values()} == {2, 3}


def test_a_newcomer_that_dies_costs_the_others_nothing(tmp_path):
    said = job(tmp_path, 3, 10, 3, "1:done:5", "3:sync:0", options=("--min-np", "2"))
    check(said, 10)
    assert sizes(said, 0)[0] == sizes(said, 0)[-1] == 3 and sizes(said, 4) == [3] and said[3] == []


def test_newcomers_that_do_not_fit_are_refused_by_name_and_disturb_nobody(tmp_path):
    script = SCRIPT.with_name("newcomer_script.py")
    code, output = launch(4, [sys.executable, script, tmp_path], options=("--min-np", "1"))
    assert code == 0, output
    said = {int(path.name): path.read_text() for path in tmp_path.iterdir()}
    setting = "its settings are not the job's: RUEDA_CACHE_CAPACITY=7 instead of "
    layout = "the names, shapes or dtypes of its state are not those of the job's"
    assert said.pop(0) == "trained " and setting in said[4] and said[5] == layout, said
    assert said[6] == f"trained { {'this rank joins a running job: collectives come after elastic.run has let it in'} }", said
    for why in (setting, layout):
        assert sum("is refused: " + why in line for line in output.splitlines()) == 1, output
    assert output.count("1 rank goes on from commit 2") == 1, output


def test_the_example_ends_with_equal_parameters(tmp_path):
    example = SCRIPT.parents[2] / "examples" / "train_elastic.py"
    code, output = launch(2, [sys.executable, example, "--epochs", "2"], options=("--min-np", "1"))
    hashes = [line.split()[-1] for line in output.splitlines() if "parameter hash" in line]
    assert code == 0 and len(hashes) == 2 and len(set(hashes)) == 1, output


HOROVOD = """
import sys, torch
import horovod.torch as hvd
from horovod.torch.elastic import TorchState
from horovod.common.process_sets import ProcessSet, add_process_set

hvd.init()
model = torch.nn.Linear(8, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01 * hvd.size()), model.named_parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000000)
first = ProcessSet([0])
add_process_set(first)

def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()

@hvd.elastic.run
def train(state):
    while not state.batch or state.batch % 20 or state.size < 3:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        state.batch, state.size = state.batch + 1, hvd.size()
        if state.batch == 20 and hvd.rank() == 0:
            open(sys.argv[1], "w").write("localhost:2\\n127.0.0.1:1\\n")
        if state.batch % 5 == 0:
            state.commit()
    assert first.ranks == [0] and first.included() == (hvd.rank() == 0)
    mine = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=first).item() if first.included() else 1
    print("end", hvd.size(), round(optimizer.param_groups[0]["lr"], 4), mine, flush=True)

state = TorchState(model, optimizer, batch=0, size=0, schedule=schedule)
state.register_reset_callbacks([on_state_reset])
train(state)
"""


def test_a_script_of_horovod_grows_as_its_discovery_script_says(tmp_path):
    hosts, script, program = tmp_path / "hosts", tmp_path / "discover.sh", tmp_path / "train.py"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o700)
    program.write_text(HOROVOD)
    command = [sys.executable, "-m", "rueda.compat.horovodrun", "-np", "2", "--min-np", "2", "--max-np", "3"]
    command += ["--host-discovery-script", str(script), sys.executable, str(program), str(hosts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = sorted(line.split(": ", 1)[1] for line in done.stdout.splitlines() if "end 3" in line)
    assert ends == ["end 3 0.03 1"] * 2 + ["end 3 0.03 1.0"], done.stdout + done.stderr


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
