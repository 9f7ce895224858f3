"""join(): ranks with fewer steps take part with what changes nothing."""

import numpy as np
import rueda as hvd
import torch
from expect import raises, same
from rueda import torch as hvt
from worlds import ranks, results, run_ranks

WORLD = "torch"


@ranks(1, 2, 3)
def test_ranks_with_fewer_steps_join():
    rank, size = hvd.rank(), hvd.size()
    for epoch in range(3):
        steps = [10 + 3 * ((r + epoch) % size) for r in range(size)]
        for step in range(steps[rank]):
            there = [r for r in range(size) if step < steps[r]]
            mine = np.full(5, rank + 1, np.int32)
            total = np.full(5, sum(r + 1 for r in there), np.int32)
            same(hvd.allreduce(mine, name="sum", op=hvd.Sum), total)
            same(hvd.allreduce(mine, op=hvd.Average), total // size)  # by all ranks
            same(hvd.allreduce(mine, op=hvd.Min), np.full(5, min(there) + 1, np.int32))
            same(hvd.allgather(mine[:1]), np.array([r + 1 for r in there], np.int32))
            x = torch.full((4,), float(rank + 1))
            assert hvt.allreduce_(x, name="torch", op=hvd.Sum)[0] == sum(r + 1 for r in there)
            a, b = hvt.grouped_allreduce([x * 0 + 1, x * 0 + 2], op=hvd.Sum)
            assert a[0] == len(there) and b[0] == 2 * len(there)
            hvd.barrier()
        last = hvd.join()
        assert steps[last] == max(steps), (last, steps)
        same(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, float(size)))


@ranks(2, 3)
def test_training_with_uneven_data_ends_alike_on_all_ranks():
    rank = hvd.rank()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = hvt.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    for _ in range(5 + 4 * rank):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert hvt.join() == hvd.size() - 1
    hvt.broadcast_parameters(model.state_dict(), root_rank=hvd.size() - 1)
    weights = hvt.allgather_object(model.weight.tolist())
    assert all(w == weights[0] for w in weights)


@ranks(2, 3)
def test_what_a_joined_rank_cannot_give_is_an_error_that_names_it():
    if hvd.rank() != 1:
        with raises(hvd.HorovodInternalError, "its root, rank 1 ", "has joined"):
            hvd.broadcast(np.ones(3), 1)
        scaled = {"op": hvd.Product, "prescale_factor": 2.0}
        with raises(hvd.HorovodInternalError, "no neutral element", "rank 1 "):
            hvd.allreduce(np.ones(3), **scaled)
        same(hvd.broadcast(np.ones(3), 0), np.ones(3))
    assert hvd.join(-1) in range(hvd.size())


@ranks(3)
def test_join_in_a_process_set():
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() == 0:
        same(hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=pair), np.ones(2))
    same_everywhere = None
    if pair.included():
        same_everywhere = hvd.join(process_set=pair)
        assert same_everywhere == 0
    else:
        with raises(ValueError, "not a member"):
            hvd.join(process_set=pair)
    same(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, 3.0))
    hvd.remove_process_set(pair)


def is_as_strict_as_horovod():
    rank = hvd.rank()
    if rank == 0:
        for call in (
            lambda: hvd.allgather(np.ones(2), name="g"),
            lambda: hvd.broadcast(np.ones(2), 0, name="b"),
            lambda: hvd.alltoall(np.ones(6), name="a"),
            lambda: hvd.reducescatter(np.ones(6), op=hvd.Sum, name="r"),
        ):
            with raises(hvd.HorovodInternalError, "has joined", "RUEDA_HOROVOD_STRICT"):
                call()
        same(hvd.allreduce(np.ones(2), op=hvd.Sum, name="s"), np.ones(2))
    hvd.join()
    same(hvd.allgather(np.ones(1)), np.ones(hvd.size()))

    first = hvd.allreduce_async(np.ones(2), op=hvd.Sum, name="twice")
    with raises(ValueError, "allreduce 'twice'", "same name as another tensor that is currently being processed"):
        hvd.allreduce_async(np.ones(2), op=hvd.Sum, name="twice")
    same(hvd.synchronize(first), np.full(2, float(hvd.size())))
    x = torch.ones(3)
    for _ in range(3):  # the name is free again each time
        hvt.synchronize(hvt.allreduce_async_(x, op=hvd.Average, name="again"))
    assert x.tolist() == [1, 1, 1]
    with raises(ValueError, "allreduce 'again'"):
        handles = [hvt.allreduce_async_(x, name="again") for _ in range(2)]
        del handles
    return True


def test_horovods_strictness_when_it_is_asked_for():
    for size in (2, 3):
        assert all(results(run_ranks(size, is_as_strict_as_horovod, env={"RUEDA_HOROVOD_STRICT": "1"})))
