"""Joining and leaving a job many times in one process, and equal seeds giving equal bits."""

import hashlib
import os
import random
import time

import pytest
from worlds import ranks


def every_collective(hvd, torch):
    """Each collective once; sums that show that every rank took part."""
    rank, size = hvd.rank(), hvd.size()
    mine, everyone = torch.full((size,), float(rank)), sum(range(size))
    assert hvd.allreduce(mine, op=hvd.Sum).tolist() == [everyone] * size
    assert hvd.allreduce_(mine.clone(), name="named", op=hvd.Max).tolist() == [size - 1] * size
    group = hvd.grouped_allreduce([mine, mine + 1], op=hvd.Sum)
    assert [t[0].item() for t in group] == [everyone, everyone + size]
    assert hvd.allgather(mine[: rank + 1]).tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    assert len(hvd.grouped_allgather([mine, mine])) == 2
    assert hvd.broadcast(mine, size - 1).tolist() == [size - 1] * size
    assert hvd.broadcast_(mine.clone(), 0).tolist() == [0] * size
    received, splits = hvd.alltoall(mine, splits=[1] * size)
    assert received.tolist() == list(range(size)) and splits.tolist() == [1] * size
    assert hvd.reducescatter(mine, op=hvd.Sum).tolist() == [everyone]
    assert len(hvd.grouped_reducescatter([mine, mine], op=hvd.Sum)) == 2
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    assert hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense().tolist() == [1] * size
    assert hvd.allgather_object(rank) == list(range(size))
    assert hvd.broadcast_object(rank, root_rank=0) == 0
    hvd.barrier()


def open_things():
    """Descriptors, threads and mappings of shared memory that this process has."""
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:rueda" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared


def rounds(count):
    import rueda.torch as hvd
    import torch

    after = []
    for _ in range(count):
        every_collective(hvd, torch)
        hvd.shutdown()
        assert not hvd.is_initialized()
        after.append(open_things())
        hvd.init()
    settled = after[2]
    assert after[-1] == settled, f"from {settled} to {after[-1]} descriptors, threads, mappings"


@ranks(2)
def test_twenty_rounds_of_init_all_collectives_and_shutdown():
    rounds(20)


@pytest.mark.slow
@ranks(2)
def test_a_hundred_rounds_of_init_all_collectives_and_shutdown():
    rounds(100)


def train(hvd, torch, delays):
    """A few steps of a small model; every gradient comes late by chance. The parameters' hash."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        *(layer for _ in range(4) for layer in (torch.nn.Linear(24, 24), torch.nn.Tanh()))
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    if delays is not None:
        for p in model.parameters():
            p.register_hook(lambda grad: time.sleep(delays.random() * 0.002))
    inputs = torch.Generator().manual_seed(hvd.rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 24, generator=inputs)).square().mean().backward()
        if delays is not None:
            time.sleep(delays.random() * 0.003)
        optimizer.step()
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    return digest.hexdigest()


@ranks(3)
def test_twenty_runs_with_equal_seeds_and_random_delays_give_one_hash():
    import rueda.torch as hvd
    import torch

    torch.set_num_threads(1)
    hashes = [train(hvd, torch, None)]
    for run in range(20):
        if run % 5 == 4:  # what the runtime has learnt so far is forgotten
            hvd.shutdown()
            hvd.init()
        hashes.append(train(hvd, torch, random.Random(100 * run + hvd.rank())))
    everyones = hvd.allgather_object(hashes)
    assert len({value for hashes in everyones for value in hashes}) == 1, everyones
