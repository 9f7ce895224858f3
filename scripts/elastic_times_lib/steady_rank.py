"""A rank of elastic_times' steady part: trains 25 MB in blocks of steps, in turns with the ranks of another job.

    steady_rank.py FOLDER BLOCKS elastic|plain

A turn is a byte in the FIFO FOLDER/<elastic or plain>; rank 0 hands it on into the other one. So both jobs have the machine to themselves,
and what else goes on there meets both alike. Writes FOLDER/<elastic or plain>.<rank>: the number of control messages that all blocks but the
first took, and the median step of each of these, in seconds. Plain training knows nothing of `hvd.elastic`.
"""

import os
import statistics
import sys
import time

import rueda.torch as hvd
import torch
from rueda._runtime import runtime

FOLDER, BLOCKS, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
OTHER = {"elastic": "plain", "plain": "elastic"}[KIND]
STEPS, COLD = 20, 4  # in a block; of these, not measured, as the other job's steps and a barrier were before


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(25 << 18))

    def forward(self, x):
        return (self.weights * x).sum()


def blocks(model, optimizer, after_step):
    """([the median step of each block], control messages). The first block plans and is left out."""
    mine, other = (os.open(os.path.join(FOLDER, name), os.O_RDWR) for name in (KIND, OTHER))
    medians, messages = [], 0
    for _ in range(1 + BLOCKS):
        if hvd.rank() == 0:
            os.read(mine, 1)
        hvd.barrier()
        times = []
        for step in range(STEPS):
            if step == COLD:
                before = runtime.counter("control_messages")
            began = time.monotonic()
            optimizer.zero_grad()
            model(1.0).backward()
            optimizer.step()
            after_step()
            times.append(time.monotonic() - began)
        messages = messages + runtime.counter("control_messages") - before if medians else 0
        medians.append(statistics.median(times[COLD:]))
        hvd.barrier()
        if hvd.rank() == 0:
            os.write(other, b"t")
    return medians[1:], messages


def main():
    hvd.init()
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if KIND == "plain":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        medians, messages = blocks(model, optimizer, lambda: None)
    else:
        state = hvd.elastic.TorchState(model, optimizer, step=0)

        def count():
            state.step += 1

        medians, messages = hvd.elastic.run(lambda state: blocks(model, optimizer, count))(state)
    path = os.path.join(FOLDER, f"{KIND}.{hvd.rank()}")
    with open(path + ".new", "w") as file:
        print(messages, *medians, file=file)
    os.rename(path + ".new", path)
    hvd.shutdown()


main()
