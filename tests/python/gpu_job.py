"""One rank of a job that compares the collectives of CUDA tensors with those of CPU tensors.

Started by ``scripts/gpu_check`` with ruedarun; needs PyTorch with CUDA. Whole numbers, so that sums are exact in every order.
"""

import torch

import rueda.torch as hvd


def compare(what, call, *tensors):
    """The same call on copies of the tensors on both devices gives the same numbers."""
    on_cpu = call("cpu", *[tensor.clone() for tensor in tensors])
    on_gpu = call("gpu", *[tensor.cuda() for tensor in tensors])
    assert on_gpu.is_cuda, what
    assert torch.equal(on_gpu.cpu(), on_cpu), f"{what}: {on_gpu.cpu()} on the GPU, {on_cpu} on the CPU"


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        for count in (1, 1000, 1 << 20):
            ramp = ((torch.arange(count) + rank) % 16).to(dtype)
            name = f"{dtype}.{count}"
            compare(name, lambda at, t: hvd.allreduce(t, op=hvd.Sum, name=f"{name}.{at}"), ramp)
            compare(name, lambda at, t: hvd.broadcast(t, size - 1, name=f"b.{name}.{at}"), ramp)
    for rows in ([2] * size, list(range(size))):
        mine = torch.full((rows[rank], 3), float(rank))
        compare(f"allgather {rows}", lambda at, t: hvd.allgather(t, name=f"g{sum(rows)}.{at}"), mine)
    split = torch.arange(size + 1.0)[:, None].repeat(1, 2) + 10 * rank
    compare("reducescatter", lambda at, t: hvd.reducescatter(t, op=hvd.Sum, name=f"s.{at}"), split)
    blocks = torch.arange(2.0 * size) + 100 * rank
    compare("alltoall", lambda at, t: hvd.alltoall(t, splits=torch.tensor([2] * size), name=f"a.{at}")[0], blocks)

    # Attention whose ranks pass rows by NCCL.
    import rueda.attention as ra

    torch.manual_seed(5)  # the same on all ranks
    full = [torch.randn(1, 64 * size + 5, 4, 64) for _ in range(3)]
    for layout in ("zigzag", "striped"):
        own = [ra.shard_sequence(x, layout=layout) for x in full]
        on_cpu = ra.ring_attention(*own, layout=layout, causal=True)
        on_gpu = ra.ring_attention(*(x.cuda() for x in own), layout=layout, causal=True)
        assert on_gpu.is_cuda and torch.allclose(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4), layout

    # Order of streams: the collective sees what the kernel before it wrote, the kernel after it what it wrote.
    for step in range(50):
        big = torch.zeros(1 << 22, device="cuda")
        big.add_(rank + step)
        total = hvd.allreduce(big, op=hvd.Sum, name="ordered")
        expected = size * step + size * (size - 1) / 2
        assert bool((total == expected).all()), step

    # One training step's shape: gradients by hooks, averaged.
    model = torch.nn.Linear(64, 8).cuda()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(16, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    weights = hvd.allgather(model.weight.detach().reshape(1, -1).cpu(), name="weights")
    assert bool((weights == weights[0]).all()), "replicas differ"
    print(f"rank {rank} of {size}: the same on {torch.cuda.get_device_name()}", flush=True)


main()
