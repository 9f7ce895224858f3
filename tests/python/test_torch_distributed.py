"""Every operation of torch.distributed on groups of backend rueda, against plain references.

Each function is one job per number of ranks. Operations are tried blocking and asynchronous, in the default
group and in one whose order is not ascending.
"""

import itertools

import torch
import torch.distributed as dist
from c10d_cases import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    MOVED_ONLY,
    SHAPES,
    SUM,
    backwards,
    default_group,
    laid_out,
    reduced,
    reductions,
    same,
    values,
)
from worlds import ranks

WORLD = "torch"
REDUCED = (torch.bool, *INTEGERS, *FLOATS, *COMPLEX)
MOVED = (*REDUCED, *MOVED_ONLY)


def groups():
    """The default group, and one of all ranks backwards."""
    yield dist.group.WORLD
    yield backwards()


def done(work):
    """Waits where there is something to wait for; operations alternate between both forms."""
    if work is not None:
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None


def cases(dtypes):
    turn = itertools.count()
    for dtype, shape in itertools.product(dtypes, SHAPES):
        for layout in LAYOUTS if shape == (3, 4) else ("plain",):
            yield dtype, shape, layout, next(turn) % 2 == 1


@ranks(1, 2, 3, 4)
def test_what_is_reduced():
    with default_group():
        for group in groups():
            for dtype, shape, layout, later in cases(REDUCED):
                for op in reductions(dtype):
                    check_reductions(group, dtype, shape, layout, later, op)
            dist.barrier(group=group)


def check_reductions(group, dtype, shape, layout, later, op):
    me, size = group.rank(), group.size()
    inputs = [values(rank, dtype, shape) for rank in range(size)]
    total = reduced(op, inputs)

    tensor = laid_out(inputs[me], layout)
    done(dist.all_reduce(tensor, op, group, async_op=later))
    same(tensor, total)

    root = size - 1
    tensor = laid_out(inputs[me], layout)
    done(dist.reduce(tensor, group_dst=root, op=op, group=group, async_op=later))
    same(tensor, total if me == root else inputs[me])

    parts = [
        laid_out(inputs[me] if rank % 2 == 0 else inputs[me].clone(), layout)
        for rank in range(size)
    ]
    output = laid_out(torch.zeros_like(total), layout)
    done(dist.reduce_scatter(output, parts, op, group, async_op=later))
    same(output, total)

    joined = laid_out(torch.stack([inputs[me]] * size), layout)
    output = laid_out(torch.zeros_like(total), layout)
    done(dist.reduce_scatter_tensor(output, joined, op, group, async_op=later))
    same(output, total)


@ranks(1, 2, 3, 4)
def test_what_is_moved():
    with default_group():
        for group in groups():
            for dtype, shape, layout, later in cases(MOVED):
                check_moves(group, dtype, shape, layout, later)
            dist.barrier(group=group)


def check_moves(group, dtype, shape, layout, later):
    me, size = group.rank(), group.size()
    inputs = [values(rank, dtype, shape) for rank in range(size)]

    def empty():
        return laid_out(torch.zeros(shape, dtype=torch.uint8).to(dtype), layout)

    def mine():
        return laid_out(inputs[me], layout)

    for root in {0, size - 1}:
        tensor = mine()
        done(dist.broadcast(tensor, group_src=root, group=group, async_op=later))
        same(tensor, inputs[root])
        outputs = [empty() for _ in range(size)] if me == root else None
        done(dist.gather(mine(), outputs, group_dst=root, group=group, async_op=later))
        for got, wanted in zip(outputs or (), inputs):
            same(got, wanted)
        output = empty()
        parts = [laid_out(each, layout) for each in inputs] if me == root else None
        done(dist.scatter(output, parts, group_src=root, group=group, async_op=later))
        same(output, inputs[me])

    outputs = [empty() for _ in range(size)]
    done(dist.all_gather(outputs, mine(), group, async_op=later))
    for got, wanted in zip(outputs, inputs):
        same(got, wanted)

    whole = torch.zeros((size, *shape), dtype=torch.uint8).to(dtype)
    done(dist.all_gather_into_tensor(whole, mine(), group, async_op=later))
    for got, wanted in zip(whole, inputs):
        same(got, wanted)

    outputs = [empty() for _ in range(size)]
    done(dist.all_to_all(outputs, [mine() for _ in range(size)], group, async_op=later))
    for got, wanted in zip(outputs, inputs):
        same(got, wanted)

    whole = torch.zeros((size, *shape), dtype=torch.uint8).to(dtype)
    done(
        dist.all_to_all_single(whole, torch.stack([inputs[me]] * size), group=group, async_op=later)
    )
    for got, wanted in zip(whole, inputs):
        same(got, wanted)


@ranks(1, 2, 3, 4)
def test_uneven_sizes():
    with default_group():
        for group in groups():
            me, size = group.rank(), group.size()

            def part(rank, other):
                return values(rank + other, torch.float32, (rank + 2 * other, 3))

            outputs = [torch.zeros(rank, 3) for rank in range(size)]
            dist.all_gather(outputs, part(me, 0), group)
            for rank, got in enumerate(outputs):
                same(got, part(rank, 0))

            sent = [part(me, other) for other in range(size)]
            outputs = [torch.zeros_like(part(other, me)) for other in range(size)]
            dist.all_to_all(outputs, sent, group)
            for other, got in enumerate(outputs):
                same(got, part(other, me))

            whole = torch.zeros(sum(len(o) for o in outputs), 3)
            dist.all_to_all_single(
                whole, torch.cat(sent), [len(o) for o in outputs], [len(s) for s in sent], group
            )
            same(whole, torch.cat([part(other, me) for other in range(size)]))

            pieces = [torch.full((rank + 1, 2), float(me + rank)) for rank in range(size)]
            output = torch.zeros(me + 1, 2)
            dist.reduce_scatter(output, pieces, SUM, group)
            same(output, torch.full((me + 1, 2), float(sum(range(size)) + me * size)))

            outputs = [torch.zeros(rank + 1) for rank in range(size)] if me == 0 else None
            dist.gather(torch.full((me + 1,), float(me)), outputs, group_dst=0, group=group)
            for rank, got in enumerate(outputs or ()):
                same(got, torch.full((rank + 1,), float(rank)))


@ranks(1, 2, 3)
def test_several_tensors_are_one_call():
    with default_group() as group:
        me, size = group.rank(), group.size()
        shapes = (3,), (0,), (2, 2), (5,)
        tensors = [torch.full(shape, me + 1.0) for shape in shapes]
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, size * (size + 1) / 2))

        outputs = [torch.zeros(size * 2) for _ in range(3)]
        with dist._coalescing_manager(group, async_ops=True) as manager:
            for place, output in enumerate(outputs):
                dist.all_gather_into_tensor(output, torch.full((2,), 10.0 * place + me))
        manager.wait()
        for place, output in enumerate(outputs):
            same(
                output,
                torch.tensor([10.0 * place + rank for rank in range(size) for _ in range(2)]),
            )

        outputs = [torch.zeros(2) for _ in range(3)]
        with dist._coalescing_manager(group):
            for place, output in enumerate(outputs):
                dist.reduce_scatter_tensor(output, torch.full((2 * size,), place + me * 1.0))
        for place, output in enumerate(outputs):
            same(output, torch.full((2,), float(place * size + sum(range(size)))))

        outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
        dist.all_gather_coalesced(outputs, [torch.full((2,), me * 1.0), torch.full((3,), me + 0.5)])
        for rank, (first, second) in enumerate(outputs):
            same(first, torch.full((2,), rank * 1.0))
            same(second, torch.full((3,), rank + 0.5))
        future = dist.all_reduce_coalesced(tensors, async_op=True)
        assert len(future.wait()) == len(tensors)


@ranks(1, 2, 3)
def test_factors_and_sparse_tensors():
    with default_group() as group:
        me, size = group.rank(), group.size()
        for factor in (0.5, torch.tensor([2.0])):
            op = dist._make_nccl_premul_sum(factor)
            tensor = torch.full((4,), me + 1.0)
            dist.all_reduce(tensor, op)
            same(tensor, torch.full((4,), size * (size + 1) / 2 * float(factor)))
            output = torch.zeros(2)
            dist.reduce_scatter_tensor(output, torch.full((2 * size,), me + 1.0), op)
            same(output, torch.full((2,), size * (size + 1) / 2 * float(factor)))
        places = torch.tensor([[0, me + 1, 5]])
        sparse = torch.sparse_coo_tensor(places, torch.ones(3, 2), (6, 2))
        wanted = sum(
            torch.sparse_coo_tensor(
                torch.tensor([[0, r + 1, 5]]), torch.ones(3, 2), (6, 2)
            ).to_dense()
            for r in range(size)
        )
        for later in (False, True):
            tensor = sparse.clone()
            done(dist.all_reduce(tensor, async_op=later))
            same(tensor.to_dense(), wanted)


@ranks(1, 2, 3)
def test_objects():
    with default_group() as group:
        me, size = group.rank(), group.size()

        def thing(rank):
            return {"rank": rank, "text": "x" * (rank * 1000)}

        gathered = [None] * size
        dist.all_gather_object(gathered, thing(me))
        assert gathered == [thing(rank) for rank in range(size)]
        gathered = [None] * size if me == size - 1 else None
        dist.gather_object(thing(me), gathered, dst=size - 1)
        assert gathered is None or gathered == [thing(rank) for rank in range(size)]
        objects = [thing(7), "a"] if me == 0 else [None, None]
        dist.broadcast_object_list(objects, src=0)
        assert objects == [thing(7), "a"]
        received = [None]
        dist.scatter_object_list(
            received, [thing(r) for r in range(size)] if me == 0 else None, src=0
        )
        assert received == [thing(me)]


@ranks(2, 3)
def test_messages():
    with default_group():
        for group in groups():
            me, size = group.rank(), group.size()
            right, left = (me + 1) % size, (me - 1) % size
            received = [torch.zeros(3), torch.zeros(2, 2).t()]
            sends = [
                dist.isend(torch.full((3,), me * 1.0), group_dst=right, group=group, tag=1),
                dist.isend(torch.full((2, 2), me + 0.5), group_dst=right, group=group, tag=2),
            ]
            later = dist.irecv(received[1], group_src=left, group=group, tag=2)
            dist.recv(received[0], group_src=left, group=group, tag=1)
            assert later.wait() and later.source_rank() == left
            same(received[0], torch.full((3,), left * 1.0))
            same(received[1], torch.full((2, 2), left + 0.5))
            for send in sends:
                send.wait()

            mine = torch.zeros(2)
            to_me = dist.isend(torch.ones(2), group_dst=me, group=group)
            dist.irecv(mine, group_src=me, group=group).wait()
            to_me.wait()
            same(mine, torch.ones(2))

            tensor = torch.zeros(2, dtype=torch.int64)
            operations = [
                dist.P2POp(dist.irecv, tensor, group=group, group_peer=left),
                dist.P2POp(dist.isend, torch.tensor([me, 5]), group=group, group_peer=right),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            same(tensor, torch.tensor([left, 5]))


@ranks(2, 3)
def test_messages_from_anybody():
    with default_group():
        me, size = dist.get_rank(), dist.get_world_size()
        if me == 0:
            seen = set()
            for _ in range(size - 1):
                tensor = torch.zeros(1)
                source = dist.recv(tensor)
                assert tensor.item() == source
                seen.add(source)
            assert seen == set(range(1, size))
        else:
            dist.send(torch.tensor([float(me)]), 0)
