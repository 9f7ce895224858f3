"""Calls drawn by a seed in which one rank asks for something else than the others.

Each time every rank gets one error that names both ranks and both values, nothing is written, and the group
works on.
"""

import collections
import os
import random
import re
import time

import torch
import torch.distributed as dist
from c10d_cases import AVG, MAX, MIN, PRODUCT, SUM, backwards, default_group
from rueda.torch.distributed import CollectiveError
from worlds import ranks

WORLD = "torch"
SEED = int(os.environ.get("RUEDA_TEST_SEED", "1"))
ROUNDS = 150
MOST_SECONDS = 10  # of one error; half of them take less than a second

Call = collections.namedtuple("Call", "kind count dtype op root extra")
Call.__doc__ = (
    """``count`` elements for each rank; ``extra``: (a rank, how many more for that one)."""
)

REDUCING = "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"
ROOTED = "broadcast", "reduce", "gather", "scatter"
GATHERING = "all_gather", "all_gather_into_tensor"
EXCHANGING = "all_to_all", "all_to_all_single"
UNEVEN = "reduce_scatter", "all_to_all", "all_to_all_single"
KINDS = sorted({*REDUCING, *ROOTED, *GATHERING, *EXCHANGING, "barrier"})
SAME_KIND = [set(GATHERING), set(EXCHANGING), set(REDUCING[2:])]
DTYPES = torch.float32, torch.int32, torch.float64, torch.int64, torch.bfloat16, torch.uint8
OPS = {SUM: "sum", MAX: "max", MIN: "min", PRODUCT: "product", AVG: "average"}


def drawn(random, size, odd):
    """(what all but one ask for, what that one asks for, which field differs)."""
    kind = random.choice(KINDS)
    call = Call(
        kind,
        random.choice((1, 3, 64, 5000)),
        random.choice(DTYPES),
        random.choice(list(OPS)) if kind in REDUCING else SUM,
        random.randrange(size) if kind in ROOTED else 0,
        (0, 0),
    )
    fields = ["kind"]
    if kind != "barrier":
        fields += ["count", "dtype"]
    fields += ["op"] * (kind in REDUCING) + ["root"] * (kind in ROOTED)
    fields += ["extra"] * (kind in UNEVEN)
    field = random.choice(fields)
    values = {
        "kind": [k for k in KINDS if k != kind and not any({k, kind} <= s for s in SAME_KIND)],
        "count": [2, 4, 65, 5001],
        "dtype": [d for d in DTYPES if d is not call.dtype],
        "op": [o for o in OPS if o != call.op],
        "root": [r for r in range(size) if r != call.root],
        "extra": [((odd + 1) % size, more) for more in (1, 7)],
    }
    return call, call._replace(**{field: random.choice(values[field])}), field


def prepared(call, group):
    """(a function that makes the call, the tensors that it may write to)."""
    me, size = group.rank(), group.size()
    longer, more = call.extra
    sizes = [call.count + (more if rank == longer else 0) for rank in range(size)]

    def filled(count, value=3):
        return torch.full((count,), value, dtype=call.dtype)

    one, many, total = filled(call.count), [filled(n) for n in sizes], sum(sizes)
    own = filled(sizes[me], 9)
    outputs = [filled(n, 9) for n in sizes]
    root = {"group": group, "group_dst": call.root}
    from_root = {"group": group, "group_src": call.root}
    is_root = me == call.root
    if call.kind == "all_reduce":
        return lambda: dist.all_reduce(one, call.op, group), [one]
    if call.kind == "reduce":
        return lambda: dist.reduce(one, op=call.op, **root), [one]
    if call.kind == "broadcast":
        return lambda: dist.broadcast(one, **from_root), [one]
    if call.kind == "gather":
        return lambda: dist.gather(one, outputs if is_root else None, **root), [one, *outputs]
    if call.kind == "scatter":
        return lambda: dist.scatter(own, many if is_root else None, **from_root), [own, *many]
    if call.kind == "all_gather":
        return lambda: dist.all_gather(outputs, one, group), [one, *outputs]
    if call.kind == "reduce_scatter":
        return lambda: dist.reduce_scatter(own, many, call.op, group), [own, *many]
    if call.kind == "all_to_all":
        # From each the same, so that only what others expect is wrong.
        return lambda: dist.all_to_all(outputs, many, group), [*outputs, *many]
    if call.kind == "barrier":
        return lambda: dist.barrier(group=group), []
    whole, flat = filled(total, 9), filled(total)
    if call.kind == "all_gather_into_tensor":
        return lambda: dist.all_gather_into_tensor(whole, one, group), [whole, one]
    if call.kind == "reduce_scatter_tensor":
        return lambda: dist.reduce_scatter_tensor(one, flat, call.op, group), [flat, one]
    return lambda: dist.all_to_all_single(whole, flat, sizes, sizes, group), [whole, flat]


@ranks(2, 3)
def test_calls_that_disagree():
    with default_group() as everybody:
        size = dist.get_world_size()
        turned = backwards()
        draw, seconds = random.Random(SEED * 10 + size), []
        for turn in range(ROUNDS):
            group = draw.choice((everybody, turned))
            odd = draw.randrange(size)
            usual, other, field = drawn(draw, size, odd)
            about = f"seed {SEED}, turn {turn}: rank {odd} of {group} calls {other}, others {usual}"
            run, tensors = prepared(other if group.rank() == odd else usual, group)
            before = [tensor.clone() for tensor in tensors]
            begin = time.monotonic()
            try:
                run()
            except CollectiveError as error:
                check_message(str(error), group, odd, usual, other, field, about)
            else:
                raise AssertionError(f"no error: {about}")
            seconds.append(time.monotonic() - begin)
            for tensor, was in zip(tensors, before):
                assert torch.equal(tensor, was), about
            total = torch.ones(3)
            dist.all_reduce(total, group=group)
            assert total.tolist() == [size] * 3, about
        seconds.sort()
        assert seconds[-1] < MOST_SECONDS and seconds[len(seconds) // 2] < 1, seconds


def check_message(message, group, odd, usual, other, field, about):
    """Both ranks are in it, as ranks of the job, and both values."""
    named = {
        int(n)
        for some in re.findall(r"ranks? ([0-9, ]+)", message)
        for n in some.split(",")
        if n.strip()
    }
    assert dist.get_global_rank(group, odd) in named and len(named) > 1, (message, about)
    if (
        field != "extra" and " at " in message
    ):  # the place of the call, not of a wrapper that renames
        assert "test_torch_distributed_fuzz.py" in message and "wrapper" not in message, message
    for call in (usual, other):
        texts = {
            "kind": [name_of(call.kind)],
            "count": [str(call.count), str(call.count * group.size())],
            "dtype": [str(call.dtype)[6:]],
            "op": [OPS[call.op]],
            "root": [f"root rank {dist.get_global_rank(group, call.root)}"],
            "extra": [
                str(call.count + call.extra[1]),
                str(call.count * group.size() + call.extra[1]),
            ],
        }[field]
        assert any(re.search(rf"\b{text}\b", message) for text in texts), (texts, message, about)


def name_of(kind):
    """As rueda calls it."""
    for ending in ("_into_tensor", "_tensor", "_single"):
        kind = kind.removesuffix(ending)
    return kind.replace("_", "")
