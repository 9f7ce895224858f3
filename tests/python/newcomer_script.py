"""An elastic job whose newcomers do what they must not: no collective comes before `elastic.run`, settings and states are all ranks'.

    newcomer_script.py FOLDER

Members 1, 2 and 3 die. Of those that come, member 4 has another setting, 5 another model, and 6 begins with collectives. What
became of a member goes into FOLDER/<member>. The others train until 4 and 5 have said it and 6 is in.
"""

import os
import pathlib
import signal
import sys

import rueda.torch as hvd
import torch

folder, member = pathlib.Path(sys.argv[1]), int(os.environ["RUEDA_MEMBER"])
if member == 4:
    os.environ["RUEDA_CACHE_CAPACITY"] = "7"


def say(text):
    (folder / f"{member}.part").write_text(text)
    (folder / f"{member}.part").rename(folder / str(member))


def error_of(call):
    try:
        call()
    except (ValueError, hvd.HorovodInternalError) as error:
        return str(error)


def too_early():
    calls = [lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.broadcast_object(1), hvd.barrier, hvd.join]
    return {error_of(call) for call in calls}


def refused():
    return all((folder / name).exists() for name in "45")


@hvd.elastic.run
def train(state):
    while not (state.refused and hvd.size() == 2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.step += 1
        if state.step == 3 and member in (1, 2, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        state.refused = hvd.allreduce(torch.tensor([int(refused())]), op=hvd.Min, name="refused").item()
        state.commit()


said = error_of(hvd.init)
if said is None:
    early = too_early() if member == 6 else ""
    model = torch.nn.Linear(4, 2 if member == 5 else 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), named_parameters=model.named_parameters())
    said = error_of(lambda: train(hvd.elastic.TorchState(model, optimizer, step=0, refused=0))) or f"trained {early}"
say(said)
