"""A rank of elastic_times' steady part: trains so many bytes in blocks of steps, in turns with the ranks of another job.

    steady_rank.py FOLDER BLOCKS elastic|plain BYTES

A turn is a byte in the FIFO FOLDER/<elastic or plain>; rank 0 hands it on into the other one. So both jobs have the machine to themselves,
and what else goes on there meets both alike. Writes FOLDER/<elastic or plain>.<rank>: the number of control messages that all blocks but the
first two took, and the median step of each of these, in seconds. Plain training knows nothing of `hvd.elastic`.
"""

import os
import statistics
import sys
import time

import rueda.torch as hvd
import torch
from rueda._runtime import runtime

FOLDER, BLOCKS, KIND, BYTES = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
OTHER = {"elastic": "plain", "plain": "elastic"}[KIND]
STEPS, COLD = (20, 4) if BYTES >= 1 << 20 else (400, 40)  # in a block; not measured, as others' steps were before
PLANNING = 2  # blocks, not measured either: about 26 steps are negotiated, until the way for so many bytes is chosen


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(BYTES // 4))

    def forward(self, x):
        return (self.weights * x).sum()


def blocks(model, optimizer, after_step):
    """([the median step of each block], control messages) of all blocks after those that plan."""
    mine, other = (os.open(os.path.join(FOLDER, name), os.O_RDWR) for name in (KIND, OTHER))
    medians, messages = [], []
    for _ in range(PLANNING + BLOCKS):
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
        messages.append(runtime.counter("control_messages") - before)
        medians.append(statistics.median(times[COLD:]))
        hvd.barrier()
        if hvd.rank() == 0:
            os.write(other, b"t")
    return medians[PLANNING:], sum(messages[PLANNING:])


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
