"""Memory that the ranks share under torch.distributed: DDP's buckets move there, FSDP's buffers are made there."""

import gc
import os

import pytest
import rueda
import torch
import torch.distributed as dist
from c10d_cases import default_group
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from worlds import ranks

WORLD = "torch"
WIDTH = 600  # a layer's weight has 1.4 MB


def make():
    torch.manual_seed(5)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def batch(rank, step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


def reference(steps):
    """The same training by one process: gradients of all ranks, averaged."""
    model, size = make(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            (model(batch(rank, step)).square().mean() / size).backward()
        optimizer.step()
    return model


def train(model, steps, first=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(first, first + steps):
        optimizer.zero_grad(set_to_none=False)
        model(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()


def check_alike(model, expected):
    for ours, theirs in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


def in_place(run):
    """How many bytes were reduced where they lay meanwhile."""
    before = rueda.counter("bytes_in_place")
    run()
    return rueda.counter("bytes_in_place") - before


def views(model, **arguments):
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **arguments)


@ranks(2, 3)
def test_buckets_are_reduced_where_they_lie_from_the_third_step():
    with default_group():
        model = views(make(), bucket_cap_mb=2)
        size = sum(p.numel() for p in model.parameters()) * 4
        train(model, 3)  # DDP makes its buckets anew once
        moved = in_place(lambda: train(model, 2, first=3))
        assert moved >= 2 * size * 0.9, f"{moved} of {2 * size} bytes"
        check_alike(model, reference(5))


@ranks(2)
def test_buckets_that_are_copied_to_move_too():
    with default_group():
        model = DistributedDataParallel(make())
        train(model, 3)
        assert in_place(lambda: train(model, 1, first=3)) > 0
        check_alike(model, reference(4))


@ranks(2)
def test_one_rank_whose_buckets_stay_private():
    with default_group():
        model = views(make())
        if dist.get_rank() == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "statvfs", lambda path: os.statvfs_result([4096, 4096] + [1] * 8))
                train(model, 4)
        else:
            train(model, 4)
        assert in_place(lambda: train(model, 1, first=4)) == 0
        check_alike(model, reference(5))


@ranks(2)
def test_memory_of_a_dropped_model_comes_back():
    with default_group():
        used = []
        for _ in range(4):
            model = views(make())
            train(model, 3)
            del model
            gc.collect()
            other = views(make())  # what is gone is looked for when something new comes
            train(other, 1)
            del other
            gc.collect()
            used.append(sum(_heap_mappings()))
        assert used[-1] <= used[0], used


def _heap_mappings():
    """Bytes of this process's mappings of the shared heap outside of the heap itself."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if "rueda-heap" in line:
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                if end - begin < 1 << 28:
                    yield end - begin


@ranks(2)
def test_gradients_that_were_moved_are_ordinary_tensors():
    with default_group():
        model = views(make())
        train(model, 4)
        gradient = next(model.parameters()).grad
        assert gradient.is_shared()
        before = gradient.clone()
        child = os.fork()
        if child == 0:  # has no part in it, and may end as it likes
            os._exit(0 if torch.zeros(3).sum() == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(gradient, before)
        assert torch.equal(gradient.view(-1)[:10].add(1), before.view(-1)[:10] + 1)
    # Outlive the group, and all groups.
    assert torch.equal(gradient, before)


@ranks(2, 3)
def test_fully_sharded_buffers_of_the_group():
    with default_group() as group:
        model = make()
        for part in (*model, model):
            fully_shard(part, mesh=dist.DeviceMesh.from_group(group, "cpu"))
        for part in (*model, model):
            part.set_allocate_memory_from_process_group_for_comm(True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        before = rueda.counter("bytes_in_place")
        for step in range(3):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), step)).square().mean().backward()
            optimizer.step()
        assert rueda.counter("bytes_in_place") > before
        expected = reference(3)
        for ours, theirs in zip(model.parameters(), expected.parameters()):
            torch.testing.assert_close(
                ours.full_tensor().detach(), theirs.detach(), rtol=1e-5, atol=1e-6
            )


@ranks(2)
def test_tensors_that_a_group_makes():
    with default_group() as group:
        assert group.supports_tensor_alloc(torch.device("cpu"))
        assert not group.supports_tensor_alloc(torch.device("cuda"))
        with pytest.raises(ValueError, match="cpu"):
            group.allocate_tensor(3, dtype=torch.float32, device="cuda")
        assert group.allocate_tensor(0, dtype=torch.float32).shape == (0,)
        tensor = group.allocate_tensor(1 << 20, dtype=torch.float32, device=torch.device("cpu"))
        tensor.fill_(dist.get_rank() + 1)
        assert in_place(lambda: dist.all_reduce(tensor)) == tensor.nbytes
        assert (tensor == 3).all()
