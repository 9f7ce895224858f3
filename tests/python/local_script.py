"""Trains in an elastic job with state that is each rank's own, and dies where its arguments say.

    local_script.py FOLDER STEPS COMMIT_EVERY SIZE [MEMBER:PHASE:STEP ...]

It ends after STEPS steps, once SIZE ranks (0: any) have trained together.
PHASE: ``next`` (a step's beginning), ``step`` (its end), and of a commit behind STEP steps ``exchange``, ``mirror_vote``,
``mirror_voted``, ``vote``, ``voted``; of a heal ``restore`` and ``settled``, where STEP is the number of the epoch. What a rank has goes into FOLDER/<member>: ``train|end STEP AT COUNT OWNERS ORPHAN ...``, where AT and COUNT are its own
state's number of the newest step and of all steps, and OWNERS the members that have had it; of orphans OWNER:AT:COUNT.
"""

import os
import signal
import sys

import rueda.torch as hvd
import torch
from rueda._runtime import runtime
from rueda.elastic import _mirror_exchange

folder, steps, every, size = sys.argv[1], *map(int, sys.argv[2:5])
faults = [fault.split(":") for fault in sys.argv[5:]]
member = int(os.environ["RUEDA_MEMBER"])
report = os.open(os.path.join(folder, str(member)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def die_at(phase, step=None):
    if [str(member), phase, str(state.step if step is None else step)] in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def say(word):
    owners = ",".join(map(str, state.owners))
    orphans = [f"{values['owners'][-1]}:{values['at']}:{int(values['mine'][-1])}" for values in (each.values for each in state.orphans)]
    line = [word, str(state.step), str(state.at), str(int(state.mine[-1])), owners, *orphans]
    assert (state.mine == state.mine[-1]).all()
    os.write(report, (" ".join(line) + "\n").encode())


hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())


class State(hvd.elastic.TorchState):
    def restore(self):
        die_at("restore", runtime.epoch.number)
        super().restore()

    def sync(self):
        self._local.settle()
        die_at("settled", runtime.epoch.number)
        super().sync()


own = {"mine": torch.zeros(3 << 19), "at": 0, "owners": (member,)}  # two pieces
state = State(model, optimizer, step=0, local=own)

vote, move = runtime.commit_vote, _mirror_exchange._move
phases = []


def deadly_vote():
    name = phases.pop(0) if phases else "none"
    die_at(name)
    word = vote()
    die_at(name + "d")
    return word


def deadly_move(outgoing, arriving):
    if phases:
        die_at("exchange")
    move(outgoing, arriving)


runtime.commit_vote, _mirror_exchange._move = deadly_vote, deadly_move


@hvd.elastic.run
def train(state):
    phases.clear()
    if state.owners[-1] != member:
        state.owners += (member,)
    say("train")
    state.at = state.step  # of one that has inherited an older state
    while state.step < steps or size not in (0, hvd.size()):
        die_at("next")
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.mine += 1
        state.step += 1
        state.at += 1
        die_at("step")
        if state.step % every == 0:
            phases[:] = "mirror_vote", "vote"
            state.commit()
            phases.clear()


train(state)
say("end")
hvd.shutdown()
