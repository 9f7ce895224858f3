"""Trains with a guarded optimizer in an elastic job, and dies where its arguments say.

    guard_script.py FOLDER STEPS COMMIT_EVERY SIZE [MEMBER:PHASE:STEP ...]

With GUARD_REPLICA, a number of ranks, op is Average, and sums are told four times over. It ends after STEPS steps, once SIZE ranks (0: any) have made one together.
PHASE: ``backward``, ``hook`` (within backward), ``step``, ``vote`` and ``voted`` (of a step), ``applied``, ``commit``, ``next``
(the next step's beginning); ``healed`` and ``met``, where STEP is the number of the epoch that is entered. What a rank has acknowledged goes line by
line into FOLDER/<member>: ``did STEP CONTRIBUTORS SUMS DIGEST``; it is told when a commit has come back.
"""

import os
import signal
import sys

import rueda.torch as hvd
from elastic_model import made
from rueda._runtime import runtime
from rueda.elastic import _points

folder, steps, every, size = sys.argv[1], *map(int, sys.argv[2:5])
faults = [fault.split(":") for fault in sys.argv[5:]]
member = int(os.environ["RUEDA_MEMBER"])
report = os.open(os.path.join(folder, str(member)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def die_at(phase, step):
    if [str(member), phase, str(step)] in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def say(*words):
    os.write(report, (" ".join(map(str, words)) + "\n").encode())


hvd.init()
model, optimizer = made()
replica = int(os.environ.get("GUARD_REPLICA", "0")) or None
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), op=hvd.Average if replica else hvd.Sum
)
state = hvd.elastic.TorchState(model, optimizer, step=0, size=0)
assert hvd.elastic.guard(optimizer, state, replica) is optimizer

vote, meet = runtime.commit_vote, _points.meet
phase = ["", "vote", "voted"]


def deadly_vote():
    die_at(phase[1], state.step)
    word = vote()
    die_at(phase[2], state.step)
    return word


def deadly_meet(number):
    die_at("healed", runtime.epoch.number)
    newest = meet(number)
    die_at("met", runtime.epoch.number)
    return newest


runtime.commit_vote, _points.meet = deadly_vote, deadly_meet
model.layers[0].weight.register_hook(lambda grad: die_at("hook", state.step))


told = []


def acknowledge(step):
    for line in told:
        if line[1] < step:
            say(*line)
    told.clear()


@hvd.elastic.run
def train(state):
    say("train", runtime.epoch.number, hvd.size())
    acknowledge(state.step)  # a commit may have ended in an interrupt
    while state.step < steps or size not in (0, state.size):
        step = state.step
        die_at("next", step)
        optimizer.zero_grad()
        loss = model.loss(step, member)
        die_at("backward", step)
        loss.backward()
        die_at("step", step)
        optimizer.step()
        die_at("applied", step)
        state.step, state.size = step + 1, optimizer.contributors
        sums = ",".join(str(int(each * (4 if replica else 1))) for each in -model.sums.detach())
        told.append(("did", step, optimizer.contributors, sums, model.digest()))
        if state.step % every == 0:
            die_at("commit", step)
            phase[1:] = "", ""
            state.commit()
            phase[1:] = "vote", "voted"
            acknowledge(state.step)


train(state)
say("end", state.step, model.digest())
hvd.shutdown()
