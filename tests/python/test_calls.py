"""How many Python functions run for a call that recurs. Each costs a tenth of a microsecond and more."""

import collections
import sys

import numpy as np
import rueda as hvd
import rueda.torch as hvt
import torch
from worlds import ranks

WORLD = "torch"


class counted:
    """Counts the Python functions that run within the block, by name."""

    def __enter__(self):
        self.calls = collections.Counter()
        sys.setprofile(self._count)
        return self.calls

    def __exit__(self, *error):
        sys.setprofile(None)

    def _count(self, frame, event, _):
        if event == "call" and frame.f_code.co_name != "__exit__":
            self.calls[frame.f_code.co_name] += 1


@ranks(2)
def test_blocking_calls_that_come_again():
    tensor, array = torch.ones(4), np.ones(4, np.float32)
    given, taken = torch.empty(4), np.empty(4, np.float32)
    for most, call in (
        (7, lambda: hvt.allreduce_(tensor, name="calls.a", op=hvt.Sum)),
        (7, lambda: hvt.allreduce(tensor, name="calls.b", op=hvt.Sum)),
        (7, lambda: hvt.broadcast_(tensor, 0, name="calls.c")),
        (7, lambda: hvt.broadcast(tensor, 0, name="calls.d")),
        (9, lambda: hvt.allreduce(tensor, name="calls.e", out=given)),
        (9, lambda: hvd.allreduce_(array, name="calls.f")),
        (9, lambda: hvd.allreduce(array, name="calls.g")),
        (9, lambda: hvd.broadcast(array, 0, name="calls.h")),
        (12, lambda: hvd.allreduce(array, name="calls.i", out=taken)),
        (13, lambda: hvt.allreduce(tensor, op=hvt.Sum)),
        (15, lambda: hvd.broadcast(array, 0)),
        (17, lambda: hvt.allgather(tensor)),
        (17, lambda: hvd.allgather(array, name="calls.j")),
        (17, lambda: hvt.alltoall(tensor)),
        (17, lambda: hvt.reducescatter(tensor)),
    ):
        for _ in range(4):
            call()
        with counted() as calls:
            call()
        del calls["<lambda>"]
        assert sum(calls.values()) <= most, calls


@ranks(2)
def test_a_gradient_of_an_optimizer():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(20)]
    optimizer = hvt.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))

    def step():
        for p in parameters:
            p.grad = None
        loss = torch.stack(parameters).sum()
        with counted() as calls:
            loss.backward()
            optimizer.synchronize()
        optimizer._this_step.synchronized = False
        return calls

    for _ in range(4):
        step()
    calls = step()
    each = {name: count for name, count in calls.items() if count >= len(parameters)}
    assert each["complete"] == 20, calls  # the hook
    assert sum(each.values()) <= 9 * len(parameters), each
