"""Trains in an elastic job, with numbers that can be checked exactly, and dies where its arguments say.

    elastic_script.py FOLDER STEPS SIZE [MEMBER:PHASE:STEP[:HOW] ...]

It ends after STEPS steps, once SIZE ranks have made one together. MEMBER: a number; of several, ``1+2``, all
die when each has acknowledged that step and a checkpoint is whole. PHASE: ``backward``, ``step``, ``commit``, ``done``, ``reset``, and
``sync``, ``synced``, where STEP counts those of this process; ``resync``, a sync that is not its first; ``lost``, where it hears of a loss. HOW: ``kill``,
``raise``, or the code of a `sys.exit`. What a rank has acknowledged goes line by line into
FOLDER/<member>: ``did STEP SIZE TOTAL DIGEST``, with the sum of all gradients, which is a whole number, and a digest of
its parameters. The lines are there whatever happens to the process.

TEST_CHECKPOINT: folder of the job's checkpoints. TEST_RESET_TALKS: reset callbacks talk to all others, after a line
``reset EPOCH``; who dies in one waits until all are in theirs.
"""

import hashlib
import os
import signal
import sys

import rueda.torch as hvd
import torch
from expect import eventually
from rueda._runtime import runtime
from rueda.torch import checkpoint

folder, steps, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
faults = [(*fault.split(":"), "kill")[:4] for fault in sys.argv[4:]]
kept = os.environ.get("TEST_CHECKPOINT")


def said_by(member):
    with open(os.path.join(folder, str(member))) as file:
        return file.read()


def die_at(phase, step):
    epoch = runtime.epoch
    for members, where, when, how in faults:
        victims = members.split("+")
        if str(epoch.member) not in victims or (where, int(when)) != (phase, step):
            continue
        if len(victims) > 1:
            eventually(lambda: checkpoint.latest(kept) and all(f"did {step} " in said_by(each) for each in victims))
        if how == "raise":
            raise ValueError("a fault of the script's own")
        if how != "kill":
            sys.exit(int(how))
        os.kill(os.getpid(), signal.SIGKILL)


class State(hvd.elastic.TorchState):
    syncs = 0

    def sync(self):
        die_at("sync", self.syncs)
        if self.syncs:
            die_at("resync", self.step)
        self.syncs += 1
        super().sync()
        die_at("synced", self.syncs)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))
        self.count = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))  # minus the sum of its gradients

    def digest(self):
        values = [value.numpy().tobytes() for value in self.state_dict().values()]
        return hashlib.sha256(b"".join(values)).hexdigest()[:16]


hvd.init()
torch.set_num_threads(1)
torch.manual_seed(int(os.environ["RUEDA_MEMBER"]))  # so that the first sync has work to do
model = Model()
groups = [{"params": [model.count]}, {"params": model.layers.parameters(), "lr": 0.01, "momentum": 0.9}]
optimizer = torch.optim.SGD(groups, lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
report = os.open(os.path.join(folder, os.environ["RUEDA_MEMBER"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def say(*words):
    os.write(report, (" ".join(map(str, words)) + "\n").encode())


@hvd.elastic.run
def train(state):
    say("epoch", runtime.epoch.number, hvd.rank(), hvd.size())
    if state.step:  # the commit may have been left by an interrupt
        say("did", state.step - 1, state.size, state.total, model.digest())
    while state.step < steps or state.size != size:  # of the newest commit, which all have
        step = state.step
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(4, 64, generator=generator)
        # The gradient of the count is the step's number + 1 on each rank.
        loss = model.layers(batch).square().mean() + model.count * (step + 1)
        die_at("backward", step)
        try:
            loss.backward()
            die_at("step", step)
            optimizer.step()
        except hvd.HorovodInternalError:
            die_at("lost", step)
            raise
        state.total += (step + 1) * hvd.size()
        state.step, state.size = step + 1, hvd.size()
        die_at("commit", step)
        state.commit()
        assert model.count.item() == -state.total, (model.count.item(), state.total)
        say("did", step, hvd.size(), state.total, model.digest())
        die_at("done", step)


def reset():
    if "TEST_RESET_TALKS" not in os.environ:
        return die_at("reset", state.step)
    said = f"reset {runtime.epoch.number}\n"
    os.write(report, said.encode())
    if any((member, phase, step) == (str(runtime.epoch.member), "reset", str(state.step)) for member, phase, step, _ in faults):
        eventually(lambda: sum(said in said_by(member) for member in os.listdir(folder)) == hvd.size())
    die_at("reset", state.step)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="reset").item() == hvd.size()


state = State(model, optimizer, step=0, size=0, total=0, checkpoint=kept)
state.register_reset_callbacks([reset])
train(state)
say("end", state.step, state.total, model.digest())
hvd.shutdown()
