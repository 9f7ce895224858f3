"""torch.profiler sees each operation, with its shapes, under the names that Gloo's have; calls are counted."""

import torch
import torch.distributed as dist
from c10d_cases import default_group
from torch.profiler import profile
from worlds import ranks

WORLD = "torch"
SHAPE = (3, 2)


def one():
    return torch.ones(SHAPE)


def each():
    return [one() for _ in range(dist.get_world_size())]


def coalesced(group):
    with dist._coalescing_manager(group):
        dist.all_reduce(one(), group=group)
        dist.all_reduce(torch.ones(5), group=group)


def all_gathers_coalesced(group):
    with dist._coalescing_manager(group):
        for count in (2, 4):
            dist.all_gather_into_tensor(
                torch.zeros(count * group.size()), torch.ones(count), group=group
            )


def reduce_scatters_coalesced(group):
    with dist._coalescing_manager(group):
        for count in (2, 4):
            dist.reduce_scatter_tensor(
                torch.zeros(count), torch.ones(count * group.size()), group=group
            )


WITH_GLOO = {
    "all_reduce": lambda group: dist.all_reduce(one(), group=group),
    "all_reduce later": lambda group: dist.all_reduce(one(), group=group, async_op=True).wait(),
    "all_reduce strided": lambda group: dist.all_reduce(one().t(), group=group),
    "several all_reduces": coalesced,
    "broadcast": lambda group: dist.broadcast(one(), 0, group=group),
    "reduce": lambda group: dist.reduce(one(), 0, group=group),
    "all_gather": lambda group: dist.all_gather(each(), one(), group),
    "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(
        torch.cat(each()), one(), group
    ),
    "gather": lambda group: dist.gather(
        one(), each() if group.rank() == 0 else None, 0, group=group
    ),
    "scatter": lambda group: dist.scatter(
        one(), each() if group.rank() == 0 else None, 0, group=group
    ),
    "all_to_all": lambda group: dist.all_to_all(each(), each(), group),
    "all_to_all_single": lambda group: dist.all_to_all_single(
        torch.cat(each()), torch.cat(each()), group=group
    ),
    "barrier": lambda group: dist.barrier(group=group),
}


def events(call, group):
    """(name without the backend, shapes) of what the backend's events say; and how often it was called."""
    before = group._get_sequence_number_for_group()
    with profile(record_shapes=True) as profiled:
        call(group)
    backend = dist.get_backend(group) + ":"
    seen = [
        (event.name[len(backend) :], [shape for shape in event.input_shapes if shape])
        for event in profiled.events()
        if event.name.startswith(backend)
    ]
    return [each for each in seen if not each[0].startswith("wait_")], (
        group._get_sequence_number_for_group() - before
    )


_groups_of_gloo = []  # lives on: see test_torch_distributed_training.py


@ranks(2)
def test_events_and_sequence_numbers_are_those_of_gloo():
    with default_group() as ours:
        _groups_of_gloo.append(dist.new_group(backend="gloo"))
        for name, call in WITH_GLOO.items():
            got, calls = events(call, ours)
            wanted, calls_of_gloo = events(call, _groups_of_gloo[-1])
            assert got == wanted and len(got) == 1, (name, got, wanted)
            assert calls == calls_of_gloo == 1, (name, calls, calls_of_gloo)


@ranks(2)
def test_events_of_what_gloo_has_not():
    with default_group() as group:
        size = group.size()
        for call, name, shapes in (
            (lambda g: dist.reduce_scatter(one(), each()), "reduce_scatter", [[3, 2]] * size),
            (
                lambda g: dist.reduce_scatter_tensor(one(), torch.cat(each())),
                "reduce_scatter",
                [[3 * size, 2]],
            ),
            (all_gathers_coalesced, "all_gather", [[2], [4]]),
            (reduce_scatters_coalesced, "reduce_scatter", [[2 * size], [4 * size]]),
        ):
            got, calls = events(call, group)
            assert got == [(name, shapes)] and calls == 1, (got, calls)


@ranks(2)
def test_events_of_messages():
    with default_group() as group:
        me = group.rank()

        def first(group):
            if me == 0:
                dist.send(one(), 1)
            else:
                dist.recv(one(), 0)

        def second(group):
            if me == 1:
                dist.isend(torch.ones(4), 0).wait()
            else:
                dist.recv(torch.zeros(4))

        got, calls = events(first, group)
        assert got == [("recv" if me else "send", [[3, 2]])] and calls == 0, (got, calls)
        got, _ = events(second, group)
        assert got == [("send" if me else "recvAnySource", [[4]])], got


@ranks(2)
def test_a_wait_has_an_event_of_its_own():
    with default_group():
        with profile() as profiled:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.wait()
            work.wait()
        names = [event.name for event in profiled.events() if event.name.startswith("rueda:")]
        assert names == ["rueda:all_reduce", "rueda:wait_all_reduce"], names
