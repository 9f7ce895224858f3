"""One rank of a job that compares torch.distributed on CUDA tensors with the same on CPU tensors.

    ruedarun -np N python tests/python/gpu_groups.py [--device cpu]

Started by ``scripts/gpu_check``; needs PyTorch with CUDA. ``--device cpu`` runs what needs no GPU, to see that it is whole.
"""

import argparse
import inspect

import gpu_sharing
import torch
import torch.distributed as dist

import rueda.torch.distributed  # noqa: F401  the backend

DEVICE = "cuda"


def compare(what, call, *tensors):
    """The same call on copies of the tensors on both devices gives the same numbers."""
    on_cpu = call(*[tensor.clone() for tensor in tensors])
    on_gpu = call(*[tensor.to(DEVICE) for tensor in tensors])
    assert on_gpu.device.type == DEVICE, what
    assert torch.equal(on_gpu.cpu(), on_cpu), f"{what}: {on_gpu.cpu()} on the GPU, {on_cpu} on the CPU"


def collectives(group, me, size):
    def reduced(op):
        def call(tensor):
            dist.all_reduce(tensor, op, group)
            return tensor

        return call

    def to_root(tensor):
        dist.reduce(tensor, group_dst=size - 1, group=group)
        return tensor

    def sent_by_root(tensor):
        dist.broadcast(tensor, group_src=size - 1, group=group)
        return tensor

    def gathered(tensor):
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor, group)
        return torch.cat(parts)

    def at_root(tensor):
        parts = [torch.empty_like(tensor) for _ in range(size)] if me == 0 else None
        dist.gather(tensor, parts, group_dst=0, group=group)
        return torch.cat(parts) if me == 0 else tensor

    def from_root(tensor):
        share = torch.empty(tensor.numel() // size, dtype=tensor.dtype, device=tensor.device)
        dist.scatter(share, list(tensor.chunk(size)) if me == 0 else None, group_src=0, group=group)
        return share

    def shared(tensor):
        share = torch.empty(tensor.numel() // size, dtype=tensor.dtype, device=tensor.device)
        dist.reduce_scatter_tensor(share, tensor, group=group)
        return share

    def exchanged(tensor):
        got = torch.empty_like(tensor)
        dist.all_to_all_single(got, tensor, group=group)
        return got

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for count in (size, 1000 * size, size << 18):
            ramp = ((torch.arange(count) + me) % 16).to(dtype)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
                compare(f"all_reduce {op} {dtype} {count}", reduced(op), ramp)
            for call in (to_root, sent_by_root, gathered, at_root, from_root, shared, exchanged):
                compare(f"{call.__name__} {dtype} {count}", call, ramp)


def messages(group, me, size):
    after, before = (me + 1) % size, (me - 1) % size
    for count in (1, 1000, 1 << 20):
        got = torch.zeros(count, device=DEVICE)
        works = [
            dist.isend(torch.full((count,), me + 1.0, device=DEVICE), group=group, group_dst=after, tag=3),
            dist.irecv(got, group=group, group_src=before, tag=3),
        ]
        # A collective between them does not stand in their way.
        total = torch.ones(count, device=DEVICE)
        dist.all_reduce(total, group=group)
        for work in works:
            work.wait()
        assert bool((got == before + 1.0).all()) and bool((total == size).all()), count


def order_of_streams(group, me, size):
    """A collective sees what the kernel before it wrote, the kernel after `wait` what it wrote; memory is not given on early."""
    side = torch.cuda.Stream()
    for step in range(50):
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            big = torch.zeros(1 << 22, device="cuda")
            big.add_(me + step)
            work = dist.all_reduce(big, group=group, async_op=True)
            future = work.get_future().then(lambda done: done.value()[0] + 1)
            work.wait()
            expected = size * step + size * (size - 1) / 2
            assert bool((big == expected).all()), step
            assert bool((future.wait() == expected + 1).all()), step
            dist.all_reduce(torch.zeros(1 << 20, device="cuda"), group=group, async_op=True)  # let go of at once
            torch.full((1 << 20,), -1.0, device="cuda")


def training(group, me, size):
    def train(device):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(device)
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.02)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(10):
            torch.manual_seed(100 * step + me)
            optimizer.zero_grad()
            model(torch.randn(16, 64).to(device)).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])

    on_cpu, on_gpu = train("cpu"), train(DEVICE)
    assert torch.allclose(on_cpu, on_gpu, atol=2e-3), (on_cpu - on_gpu).abs().max()


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=DEVICE)
    DEVICE = parser.parse_args().device
    gpu_sharing.prepare()
    dist.init_process_group("rueda")
    rank, size = dist.get_rank(), dist.get_world_size()
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    groups = [dist.group.WORLD]
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:  # PyTorch 2.12
        groups.append(dist.new_group(range(size - 1, -1, -1), sort_ranks=False))
    for group in groups:
        for section in (collectives, messages, order_of_streams, training):
            if section is order_of_streams and DEVICE != "cuda":
                continue
            if rank == 0:
                print(f"begin {section.__name__}", flush=True)
            section(group, group.rank(), size)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: the same on {where}", flush=True)


main()
