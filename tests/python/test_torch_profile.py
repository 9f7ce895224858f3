"""torch.profiler sees rueda's collectives, waits and steps; without one nothing is told, and calls are as short."""

import collections

import numpy as np
import rueda as hvd_numpy
import rueda.torch as hvd
import torch
from rueda.torch import _ranges
from torch.autograd.profiler import profile as older_profile
from torch.profiler import profile
from worlds import ranks

WORLD = "torch"
STEPS = 3


def seen(profiled):
    """{name: [shapes of each event]} of rueda's."""
    found = collections.defaultdict(list)
    events = profiled.events() if hasattr(profiled, "events") else profiled.function_events
    for event in events:
        if event.name.startswith("rueda:"):
            found[event.name[len("rueda:") :]].append([shape for shape in event.input_shapes if shape])
    return dict(found)


def calls():
    hvd.allreduce_(torch.ones(3, 2), name="profile.a")
    hvd.synchronize(hvd.allgather_async(torch.ones(4), name="profile.b"))
    hvd.grouped_allreduce([torch.ones(2), torch.ones(5)], name="profile.c")
    hvd_numpy.broadcast(np.ones(3), 0, name="profile.d")
    hvd.barrier()


CALLS = {
    "allreduce": [[[3, 2]]],
    "allgather": [[[4]]],
    "synchronize": [[]],
    "grouped_allreduce": [[[2], [5]]],
    "broadcast": [[]],
    "barrier": [[]],
}


@ranks(2)
def test_collectives_and_waits_have_ranges():
    calls()
    for profiler in (lambda: profile(record_shapes=True), lambda: older_profile(record_shapes=True)):
        with profiler() as profiled:
            calls()
        assert seen(profiled) == CALLS, seen(profiled)
    calls()


@ranks(2)
def test_steps_have_ranges():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def steps():
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(5, 4)).sum().backward()
            optimizer.step()

    steps()
    with profile(record_shapes=True) as profiled:
        steps()
    found = seen(profiled)
    shapes = sorted([list(p.shape)] for p in model.parameters())
    assert sorted(found["gradient"]) == sorted(shapes * STEPS), found
    assert len(found["optimizer.synchronize"]) == len(found["optimizer.step"]) == STEPS, found
    steps()


@ranks(2)
def test_steps_of_sharded_and_asynchronous_optimizers_have_ranges():
    for make in (
        lambda plain: hvd.DistributedOptimizer(plain, shard="state"),
        lambda plain: hvd.AsyncOptimizer(plain),
    ):
        model = torch.nn.Linear(4, 3)
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1))
        with profile() as profiled:
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.ones(5, 4)).sum().backward()
                optimizer.step()
        assert seen(profiled).get("optimizer.step"), seen(profiled)


@ranks(2)
def test_an_operation_that_fails_ends_its_range():
    with profile() as profiled:
        try:
            hvd.allreduce_(torch.ones(2).to_sparse())
        except ValueError:
            pass
        hvd.barrier()
        with _ranges.around("rueda:after"):
            pass
    events = {event.name: event for event in profiled.events() if event.name.startswith("rueda:")}
    assert events["rueda:after"].cpu_parent is None, "the range before it has ended"


@ranks(2)
def test_nobody_is_told_while_nobody_listens():
    told, before = [], torch.autograd._record_function_with_args_enter
    torch.autograd._record_function_with_args_enter = lambda *given: told.append(given)
    try:
        calls()
    finally:
        torch.autograd._record_function_with_args_enter = before
    assert not told and not _ranges.is_on()
