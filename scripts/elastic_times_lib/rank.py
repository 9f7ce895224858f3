"""A rank of elastic_times: trains a little of a large state, and says when, into FOLDER/log.<member>.

    rank.py FOLDER MEGABYTES [pause SECONDS] [trained MEGABYTES]

``did STEP SIZE SECONDS RANK EPOCH`` when its commit of this step has returned, by CLOCK_MONOTONIC; ``sync SECONDS TOOK`` when it has the
state, without the save of it. It trains until FOLDER/enough is there.
"""

import os
import sys
import time

import rueda.torch as hvd
import torch
from rueda._runtime import runtime

FOLDER, MEGABYTES = sys.argv[1], int(sys.argv[2])
OPTIONS = dict(zip(sys.argv[3::2], map(float, sys.argv[4::2])))
PAUSE, TRAINED = OPTIONS.get("pause", 0.0), OPTIONS.get("trained", 1.0)

log = os.open(os.path.join(FOLDER, f"log.{os.environ['RUEDA_MEMBER']}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


class Model(torch.nn.Module):
    """What is trained, and beside it what is only kept; together the state."""

    def __init__(self):
        super().__init__()
        trained = int(TRAINED * (1 << 20) / 4)
        self.trained = torch.nn.Parameter(torch.zeros(trained))
        self.register_buffer("kept", torch.full((max(0, (MEGABYTES << 18) - trained),), float(os.getpid())))  # a newcomer lacks all of it

    def forward(self, x):
        return (self.trained * x).sum()


def tell_syncs(state):
    """How long each `sync` of it takes until its save begins. Its class stays the library's own."""
    sync, save, begun = state.sync, state._synced, []

    def syncing():
        begun[:] = [time.monotonic()]
        sync()

    def synced():
        now = time.monotonic()
        say("sync", now, now - begun[0])
        save()

    vars(state).update(sync=syncing, _synced=synced)


def main():
    say("process", os.getpid())
    hvd.init()
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD([model.trained], lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("trained", model.trained)])
    state = hvd.elastic.TorchState(model, optimizer, step=0, last=-1)
    tell_syncs(state)

    @hvd.elastic.run
    def train(state):
        while state.step != state.last:
            optimizer.zero_grad()
            model(1.0).backward()
            optimizer.step()
            state.step += 1
            if state.last < 0:
                enough = torch.tensor([int(os.path.exists(os.path.join(FOLDER, "enough")))])
                if hvd.allreduce(enough, op=hvd.Max, name="enough").item():
                    state.last = state.step + 3
            state.commit()
            say("did", state.step - 1, hvd.size(), time.monotonic(), hvd.rank(), runtime.epoch.number)
            time.sleep(PAUSE)

    train(state)
    hvd.shutdown()


main()
