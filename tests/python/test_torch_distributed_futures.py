"""What a future of each operation gives is what it gives with Gloo."""

import torch
import torch.distributed as dist
from c10d_cases import default_group
from worlds import ranks

WORLD = "torch"
_groups_of_gloo = []  # lives on: see c10d_training.py


def works(group):
    """A work of each operation, by name."""
    me, size = group.rank(), group.size()

    def one():
        return torch.full((3,), me + 1.0)

    def each():
        return [torch.zeros(3) for _ in range(size)]

    def flat():
        return torch.zeros(3 * size)

    at_root = me == 0
    rest = {"group": group, "async_op": True}
    yield "all_reduce", dist.all_reduce(one(), **rest)
    yield "all_reduce_coalesced", dist.all_reduce_coalesced([one(), one()], **rest)
    yield "broadcast", dist.broadcast(one(), 0, **rest)
    yield "reduce", dist.reduce(one(), 0, **rest)
    yield "all_gather", dist.all_gather(each(), one(), **rest)
    yield "all_gather_into_tensor", dist.all_gather_into_tensor(flat(), one(), **rest)
    yield "gather", dist.gather(one(), each() if at_root else None, 0, **rest)
    yield "scatter", dist.scatter(torch.zeros(3), each() if at_root else None, 0, **rest)
    yield "all_to_all", dist.all_to_all(each(), each(), **rest)
    yield "all_to_all_single", dist.all_to_all_single(flat(), flat(), **rest)
    yield "barrier", dist.barrier(**rest)


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else [plain(each) for each in value]


@ranks(2, 3)
def test_values_of_futures():
    with default_group() as ours:
        _groups_of_gloo.append(dist.new_group(backend="gloo"))
        for (name, mine), (_, theirs) in zip(works(ours), works(_groups_of_gloo[-1])):
            if name == "reduce" and ours.rank() != 0:
                mine.wait(), theirs.wait()  # Gloo leaves partial sums there
                continue
            got, wanted = value(mine), value(theirs)
            if name == "all_gather_into_tensor":
                wanted = [sum(wanted, [])]  # Gloo gives a part for each rank
            assert got == wanted, (name, got, wanted)
            if isinstance(mine, dist.Work):
                assert plain(mine.result()) == got, (name, got)


def value(work):
    """A coalesced form gives the future itself."""
    return plain((work.get_future() if isinstance(work, dist.Work) else work).wait())
