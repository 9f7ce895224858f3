"""A rank of churn's jobs. What it has acknowledged goes to FOLDER/log.<member>, line by line, whatever happens to it.

    process PID
    member NUMBER MEMBERS                             it is in this epoch, and tells who else; by rank, "0,3,4"
    epoch NUMBER RANK MEMBERS DESCRIPTORS THREADS     it trains in it, with the state
    did STEP MEMBERS SUM DIGEST                       its commit of this step has returned
    now KIND PHASE                                    it harms itself, as its plan says
    lost RANK PID TEXT                                what an error has told of a loss; -1 -1: of no rank
    removed TEXT, end STEPS DIGEST

SIGUSR1 raises an exception wherever it is, SIGUSR2 ends it with code 7, SIGURG writes its stacks to stack.<member>. It trains until FOLDER/enough is there.

The plan may have ``faults``: {member: [kind, phase, n]}, what a member does to itself when it comes to a phase for the nth time.
"""

import collections
import faulthandler
import json
import os
import signal
import sys
import threading

from arithmetic import MOMENTUM, RATE, contribution, digest

PLAN = json.loads(os.environ["CHURN_PLAN"])
SIZE, FOLDER = PLAN["size"], PLAN["folder"]
MEMBER = int(os.environ["RUEDA_MEMBER"])
log = os.open(os.path.join(FOLDER, f"log.{MEMBER}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class Mishap(Exception):
    """What a user's code might raise."""


def say(*words):
    os.write(log, (" ".join(str(word) for word in words).replace("\n", " ") + "\n").encode())


mishaps = []  # who imports something may swallow one


def mishap(*_):
    mishaps.append(1)
    raise Mishap("churn has sent SIGUSR1")


signal.signal(signal.SIGUSR1, mishap)
signal.signal(signal.SIGUSR2, lambda *_: os._exit(7))
HARMS = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": os.abort,
    "exit_0": lambda: os._exit(0),
    "exit_1": lambda: os._exit(1),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": mishap,
}
fault = PLAN.get("faults", {}).get(str(MEMBER))
came = collections.Counter()


def reached(phase):
    """Dies here, if the plan says so. "collective": a little later, from another thread."""
    came[phase] += 1
    if mishaps:
        mishap()
    if fault is None or (phase, came[phase]) != (fault[1], fault[2]):
        return
    say("now", fault[0], phase)
    if phase == "collective":
        threading.Timer(0.003, HARMS[fault[0]]).start()
    else:
        HARMS[fault[0]]()


def hooked(state):
    """The state, with the phases that are inside of it."""
    vote, sync = state.check_host_updates, state.sync

    def check_host_updates():
        reached("vote")
        vote()

    def synchronize():
        reached("sync")
        sync()
        reached("synced")

    state.check_host_updates, state.sync = check_host_updates, synchronize
    state.register_reset_callbacks([lambda: reached("callback")])
    return state


faulthandler.register(signal.SIGURG, open(os.path.join(FOLDER, f"stack.{MEMBER}"), "w"), all_threads=True)
say("process", os.getpid())
reached("start")


def entered():
    from rueda._runtime import runtime

    say("member", runtime.epoch.number, members_of(runtime.epoch))


def members_of(epoch):
    return ",".join(map(str, epoch.members))


def enough():
    return os.path.exists(os.path.join(FOLDER, "enough"))


class Plain:
    """A state of plain objects, by NumPy."""

    def __init__(self):
        import numpy as np
        import rueda.elastic
        from rueda._objects import broadcast_object

        self.hvd, self.np = rueda, np
        rueda.init()
        self.state = rueda.elastic.ObjectState(
            bcast_object=broadcast_object, get_rank=rueda.rank, step=0, last=-1, members=(), total=0,
            weights=np.zeros(SIZE), velocity=np.zeros(SIZE),
        )

    def step(self, number):
        state = self.state
        total = self.hvd.allreduce(contribution(MEMBER, number, SIZE), op=self.hvd.Sum, name="gradient")
        state.velocity = state.velocity * MOMENTUM + total
        state.weights = state.weights - state.velocity * RATE
        return int(total.sum())

    def digest(self):
        return digest(self.state.weights, self.state.velocity)

    def most(self, value):
        return int(self.hvd.allreduce(self.np.array([value]), op=self.hvd.Max, name="enough")[0])


class Torch:
    """The same by PyTorch: a model, an optimizer with momentum, TorchState."""

    def __init__(self):
        import rueda.torch as hvd
        import torch

        self.hvd, self.torch = hvd, torch
        hvd.init()
        torch.set_num_threads(1)
        self.weights = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
        model = torch.nn.Module()
        model.weights = self.weights
        self.sgd = torch.optim.SGD([self.weights], lr=RATE, momentum=MOMENTUM)
        self.sgd = hvd.DistributedOptimizer(self.sgd, named_parameters=model.named_parameters(), op=hvd.Sum)
        self.state = hvd.elastic.TorchState(model, self.sgd, step=0, last=-1, members=(), total=0)

    def step(self, number):
        self.sgd.zero_grad()
        (self.weights * self.torch.from_numpy(contribution(MEMBER, number, SIZE))).sum().backward()
        self.sgd.synchronize()
        total = int(self.weights.grad.sum().item())
        with self.sgd.skip_synchronize():
            self.sgd.step()
        return total

    def digest(self):
        velocity = self.sgd.state[self.weights]["momentum_buffer"]
        return digest(self.weights.detach().numpy(), velocity.numpy())

    def most(self, value):
        return int(self.hvd.allreduce(self.torch.tensor([value]), op=self.hvd.Max, name="enough")[0])


def train(trainer, state):
    from rueda._runtime import runtime

    epoch = runtime.epoch
    members = members_of(epoch)
    counts = (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
    say("epoch", epoch.number, trainer.hvd.rank(), members, *counts)
    if state.step:  # the commit may have been left by an interrupt
        say("did", state.step - 1, state.members, state.total, trainer.digest())
    while state.step != state.last:
        number = state.step
        reached("gradient")
        is_enough = trainer.most(enough()) and state.last < 0
        reached("collective")
        state.total = trainer.step(number)
        reached("applied")
        state.members = members
        state.step = number + 1
        if is_enough:
            state.last = number + 4
        state.commit()
        say("did", number, members, state.total, trainer.digest())
        reached("acknowledged")


def main():
    from rueda._runtime import runtime

    runtime.on_new_epoch.append(entered)
    trainer = {"plain": Plain, "torch": Torch}[PLAN["program"]]()
    hvd = trainer.hvd
    from rueda.common.exceptions import HorovodInternalError, RankLostError, RemovedError

    @hvd.elastic.run
    def run(state):
        try:
            train(trainer, state)
        except RankLostError as error:
            say("lost", error.rank, error.pid, error)
            reached("ended")
            raise
        except HorovodInternalError as error:
            say("lost", -1, -1, error)
            raise

    reached("built")
    try:
        run(hooked(trainer.state))
    except RemovedError as removal:
        say("removed", removal)
        raise
    say("end", trainer.state.step, trainer.digest())
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
