"""The way of CUDA tensors through the PyTorch binding, without a GPU (`fake_gpu.py`)."""

import ctypes

import pytest
import torch
from fake_gpu import ENV, FOLDER, FakeGpu, needs_stubs

pytestmark = needs_stubs


def collectives_come_out_right():
    from rueda import torch as hvd

    with FakeGpu(hvd.rank()) as gpu:
        _check_collectives(hvd, hvd.rank(), hvd.size())
    assert gpu.started > 100
    return hvd.counter("planned_batches")


def _check_collectives(hvd, rank, size):
    ranks = float(sum(range(size)))
    for step in range(12):
        x = torch.full((300,), float(rank + step))
        total = hvd.allreduce(x, op=hvd.Sum, name="sum")
        assert torch.equal(total, torch.full((300,), ranks + size * step)), step
        assert torch.equal(x, torch.full((300,), float(rank + step)))
        assert hvd.allreduce_(x, op=hvd.Max, name="max")[7] == size - 1 + step
        sent = torch.full((4,), rank + step)
        assert hvd.broadcast(sent, size - 1, name="b")[0] == size - 1 + step
        tall = torch.arange(2.0 * size) + step
        share = hvd.reducescatter(tall, op=hvd.Sum, name="s")
        assert torch.equal(share, size * tall[2 * rank : 2 * rank + 2])
        turned = torch.arange(6.0).view(2, 3).t() + step  # not contiguous
        assert torch.equal(hvd.allreduce(turned, op=hvd.Average, name="t"), turned)
        handles = [hvd.allreduce_async_(torch.ones(5) * i, op=hvd.Sum, name=f"m{i}") for i in range(6)]
        for i, handle in enumerate(handles):
            assert hvd.synchronize(handle)[4] == size * i
        rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)), name="g")
        assert rows[:, 0].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
        got, splits = hvd.alltoall(torch.arange(float(size)), splits=[1] * size, name="a")
        assert got.tolist() == [float(rank)] * size and splits.tolist() == [1] * size
        following, previous = (rank + 1) % size, (rank - 1) % size
        for tag in range(2):
            handle = hvd.send_async(torch.full((5,), 10.0 * rank + tag), following, tag)
            assert torch.equal(hvd.recv(torch.empty(5), previous, tag), torch.full((5,), 10.0 * previous + tag))
            hvd.synchronize(handle)
        like = torch.empty(previous + 1, 2, dtype=torch.int64)
        came = hvd.sendrecv(torch.full((rank + 1, 2), rank + step), following, previous, like=like)
        assert torch.equal(came, torch.full((previous + 1, 2), previous + step))
        one, two = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], op=hvd.Sum, name="pair")
        assert one[0] == size and two[1] == size


def training_is_that_of_the_host(compression="none"):
    from rueda import torch as hvd

    def train():
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(12, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(), torch.nn.Linear(40, 3)
        )
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        chosen = getattr(hvd.Compression, compression)
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=chosen(1) if compression == "powersgd" else chosen,
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for step in range(12):
            torch.manual_seed(100 * step + hvd.rank())
            optimizer.zero_grad()
            model(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        return [p.detach().clone() for p in model.parameters()]

    on_host = train()
    with FakeGpu(hvd.rank()) as gpu:
        on_gpu = train()
    assert gpu.started > 0
    # Two ranks: a sum of two numbers has one order.
    assert all(torch.equal(a, b) for a, b in zip(on_host, on_gpu))
    return hvd.counter("planned_batches")


def compressed_training_is_that_of_the_host():
    for compression in ("fp16", "int8", "powersgd"):
        training_is_that_of_the_host(compression)


def int8_blocks_by_kernels():
    _check_int8_blocks(conversions=3)


def int8_blocks_without_kernels():
    _check_int8_blocks(conversions=0)


def _check_int8_blocks(conversions):
    from rueda import torch as hvd
    from rueda.torch._compress_int8 import from_int8, to_int8

    torch.manual_seed(1)
    blocks = torch.randn(9, 256) * 10.0 ** torch.arange(-4, 5)[:, None]
    blocks[1, 7], blocks[2, 0], blocks[3, 255] = float("inf"), float("nan"), -float("inf")
    blocks[4] = 0.0
    blocks[5] = torch.arange(256) - 127.5  # ties
    blocks[6] = 1.4e-45 * torch.arange(256)  # the scale has no bits left
    wire = to_int8(blocks)
    back = from_int8(wire)
    before = _conversions()
    with FakeGpu(hvd.rank()):
        assert torch.equal(to_int8(blocks), wire)
        assert torch.equal(from_int8(wire).nan_to_num(1e30), back.nan_to_num(1e30))
        assert from_int8(wire)[1:4].isnan().all()
    assert _conversions() - before == conversions


def _conversions():
    return ctypes.CDLL(str(FOLDER / "fake_kernels.so")).fake_kernels_conversions()


def _results(outcome):
    assert outcome.code == 0, outcome.output
    return [next(iter(report.values()))["result"] for report in outcome.reports]


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_of_gpu_tensors(size, run_ranks):
    assert min(_results(run_ranks(size, collectives_come_out_right, ENV))) > 0


def test_training_with_gpu_gradients_is_planned_and_gives_the_same_weights(run_ranks):
    assert min(_results(run_ranks(2, training_is_that_of_the_host, ENV))) > 0


def test_compressed_training_with_gpu_gradients_gives_the_same_weights(run_ranks):
    _results(run_ranks(2, compressed_training_is_that_of_the_host, ENV))


def test_int8_kernels_round_as_pytorch_does_and_are_done_without(run_ranks):
    _results(run_ranks(1, int8_blocks_by_kernels, ENV))
    _results(run_ranks(1, int8_blocks_without_kernels, dict(ENV, RUEDA_CUDA_KERNELS="none")))
