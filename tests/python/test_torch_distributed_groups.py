"""Groups of backend rueda: several at once from several threads, and a thousand one after another."""

import gc
import os
import pathlib
import random
import threading

import torch
import torch.distributed as dist
from c10d_cases import backwards, default_group, same
from worlds import ranks

CALLS = 300
GROUPS, AT_ONCE = 1000, 20  # more at once than have channels of shared memory
MOST_GROWTH_KIB = 4 << 10


def call_by_call(group, seed, errors):
    """The same calls on all ranks; every result is looked at."""
    try:
        draw = random.Random(seed)
        me, size = group.rank(), group.size()
        for turn in range(CALLS):
            count = draw.choice((1, 17, 3000))
            kind = draw.choice(("sum", "later", "gather", "exchange", "message"))
            mine = torch.full((count,), float(me + turn))
            everybody = [torch.full((count,), float(rank + turn)) for rank in range(size)]
            if kind == "sum":
                dist.all_reduce(mine, group=group)
                same(mine, sum(everybody))
            elif kind == "later":
                works = [dist.all_reduce(mine.clone(), group=group, async_op=True) for _ in "abc"]
                for work in reversed(works):
                    work.wait()
                    same(work.result()[0], sum(everybody))
            elif kind == "gather":
                outputs = [torch.empty(count) for _ in range(size)]
                dist.all_gather(outputs, mine, group)
                same(torch.stack(outputs), torch.stack(everybody))
            elif kind == "exchange":
                output = torch.empty(size * count)
                dist.all_to_all_single(output, mine.repeat(size), group=group)
                same(output, torch.cat(everybody))
            else:
                left = torch.empty(count)
                sent = dist.isend(mine, group_dst=(me + 1) % size, group=group)
                dist.recv(left, group_src=(me - 1) % size, group=group)
                sent.wait()
                same(left, everybody[(me - 1) % size])
    except BaseException as error:
        errors.append(error)
        group.abort()


@ranks(2, 3)
def test_groups_of_several_threads_at_once():
    with default_group() as everybody:
        errors = []
        groups = [everybody, backwards()]
        threads = [
            threading.Thread(target=call_by_call, args=(group, seed, errors))
            for seed, group in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def resources():
    """(KiB of memory, descriptors, threads) of this process."""
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    values = dict(line.split(":", 1) for line in status.splitlines())
    return (
        int(values["VmRSS"].split()[0]),
        len(os.listdir("/proc/self/fd")),
        int(values["Threads"]),
    )


def make_and_use(count):
    groups = [dist.new_group() for _ in range(count)]
    for turn, group in enumerate(groups):
        tensor = torch.full((50,), float(turn))
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((50,), float(turn * group.size())))
        dist.all_gather([torch.empty(50) for _ in range(group.size())], tensor, group)
    for group in groups:
        dist.destroy_process_group(group)


@ranks(2)
def test_a_thousand_groups_leave_nothing_behind():
    with default_group():
        for _ in range(5):
            make_and_use(AT_ONCE)
        dist.barrier()
        before = resources()
        for _ in range(GROUPS // AT_ONCE):
            make_and_use(AT_ONCE)
        dist.barrier()
        after = resources()
        assert after[1:] == before[1:], (before, after)
        assert after[0] < before[0] + MOST_GROWTH_KIB, (before, after)
