"""One rank of a job that compares the collectives of CUDA tensors with those of CPU tensors.

    ruedarun -np N python tests/python/gpu_job.py [--skip SECTION,..] [--only SECTION,..]

Started by ``scripts/gpu_check``; needs PyTorch with CUDA. Whole numbers, so that sums are exact in every order. Rank 0 says
``begin SECTION`` before each. ``--device cpu`` runs what needs no GPU, to see that it is whole.
"""

import argparse
import os
import pathlib
import signal
import time

import gpu_sharing
import torch

import rueda.torch as hvd

DEVICE = "cuda"
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def settle():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def compare(what, call, *tensors):
    """The same call on copies of the tensors on both devices gives the same numbers."""
    on_cpu = call("cpu", *[tensor.clone() for tensor in tensors])
    on_gpu = call("gpu", *[tensor.to(DEVICE) for tensor in tensors])
    assert on_gpu.device.type == DEVICE, what
    assert torch.equal(on_gpu.cpu(), on_cpu), f"{what}: {on_gpu.cpu()} on the GPU, {on_cpu} on the CPU"


def collectives(rank, size):
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
    compare("alltoall", lambda at, t: hvd.alltoall(t, splits=[2] * size, name=f"a.{at}")[0], blocks)
    turned = torch.arange(12.0).view(3, 4).t() + rank
    compare("not contiguous", lambda at, t: hvd.allreduce(t.t().t(), op=hvd.Sum, name=f"t.{at}"), turned)


def messages(rank, size):
    """Around the ring, outside of groups: what goes out of one GPU comes into the next one's."""
    if size == 1:
        return
    following, previous = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 1 << 20):
        for tag in range(3):
            out = torch.arange(float(count), device=DEVICE) + 7 * rank + tag
            sent = hvd.send_async(out, following, tag)
            came = hvd.recv(torch.empty(count, device=DEVICE), previous, tag)
            hvd.synchronize(sent)
            assert torch.equal(came.cpu(), torch.arange(float(count)) + 7 * previous + tag), (count, tag)
    like = torch.empty(previous + 1, dtype=torch.int32, device="meta")
    came = hvd.sendrecv(torch.full((rank + 1,), rank, dtype=torch.int32, device=DEVICE), following, previous, like=like)
    assert came.device.type == DEVICE and came.tolist() == [previous] * (previous + 1)


def pool(rank, size):
    """Tensors in memory that NCCL has given, in a plan, freed and taken again."""
    if DEVICE == "cpu":
        return
    if torch.cuda.nccl.version() < (2, 19) or not hasattr(torch.cuda, "MemPool"):
        refused(hvd.cuda_pool, "install 2.")
        return
    for _ in range(3):
        with torch.cuda.use_mem_pool(hvd.cuda_pool()):
            tensors = [torch.empty(1 << 20, device=DEVICE) for _ in range(3)]
        for step in range(30):
            for i, tensor in enumerate(tensors):
                tensor.fill_(float(rank + step + i))
                hvd.allreduce_(tensor, op=hvd.Sum, name=f"pool.{i}")
                assert bool((tensor == size * (step + i) + sum(range(size))).all()), (step, i)
        del tensor, tensors
        torch.cuda.empty_cache()
    assert hvd.counter("nccl_registrations") > 0


def dtypes(rank, size):
    """Reductions of bytes and bools; int16 and 8-bit floats are moved, and reduced where NCCL can."""
    for dtype in (torch.uint8, torch.int8, torch.bool):
        ramp = ((torch.arange(3000) + rank) % 3).to(dtype)
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Sum):
            name = f"{dtype}.{op}"
            compare(name, lambda at, t: hvd.allreduce(t, op=op, name=f"{name}.{at}"), ramp)
    for dtype in (torch.int16, *FLOAT8):
        rows = torch.arange(6.0 * (rank + 1)).view(rank + 1, 6).to(dtype)
        name = str(dtype)
        compare(name, lambda at, t: hvd.allgather(t, name=f"g.{name}.{at}").view(torch.uint8), rows)
        compare(name, lambda at, t: hvd.broadcast(t, 0, name=f"b.{name}.{at}").view(torch.uint8), rows[:1])
    if DEVICE == "cpu":
        return
    combine(rank, size)
    able = torch.cuda.get_device_capability() >= (9, 0) and torch.cuda.nccl.version() >= (2, 24)
    for dtype in FLOAT8:
        small = torch.full((100,), float(rank % 2)).to(dtype).to(DEVICE)
        if able:
            total = hvd.allreduce(small, op=hvd.Sum, name=f"sum.{dtype}")
            assert bool((total.float() == size // 2).all()), dtype
        else:
            refused(lambda: hvd.allreduce(small, op=hvd.Sum, name=f"sum.{dtype}"), "compute capability 9.0")


def combine(rank, size):
    """Reductions that NCCL has not, by rueda's kernel: the CPU's bits, where all ranks are on one host."""
    if not has_kernels():
        whole = torch.ones(4, dtype=torch.int16, device=DEVICE)
        refused(lambda: hvd.allreduce(whole, op=hvd.Sum, name="int16"), "NCCL has no int16")
        return
    for dtype, op, pre, post in (
        (torch.int16, hvd.Sum, 1.0, 1.0),
        (torch.int16, hvd.Average, 1.0, 1.0),
        (torch.int64, hvd.Average, 1.0, 0.7),
        (torch.uint8, hvd.Sum, 1.5, 1.0),
        (torch.float32, hvd.Max, 2.5, 1.0),
        (torch.float64, hvd.Product, 1.0, 0.1),
        (torch.float16, hvd.Sum, 0.3, 1.0),
        (torch.bfloat16, hvd.Average, 0.7, 3.0),
        (torch.complex64, hvd.Product, 1.0, 1.0),
    ):
        for count in (1, 1000, 1 << 18):
            values = (torch.arange(count) % 97 + rank + 1).to(dtype)
            name = f"{dtype}.{op}.{pre}.{post}.{count}"
            compare(
                name,
                lambda at, t: hvd.allreduce(
                    t, op=op, prescale_factor=pre, postscale_factor=post, name=f"{name}.{at}"
                ),
                values,
            )


def refused(call, text):
    try:
        call()
    except (hvd.HorovodInternalError, NotImplementedError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def process_sets(rank, size):
    """Added while the GPUs are in use: NCCL splits the communicator of all ranks."""

    def everywhere():
        return hvd.allreduce(torch.ones(1000, device=DEVICE), op=hvd.Sum, name="all of them")

    assert bool((everywhere() == size).all())
    for turn in range(4 if size > 1 else 0):
        members = list(range(1, size)) if turn % 2 else list(range(size - 1))
        part = hvd.add_process_set(members)
        if rank in members:
            own = torch.full((1000,), float(rank), device=DEVICE)
            total = hvd.allreduce(own, op=hvd.Sum, process_set=part, name="part")
            assert bool((total == sum(members)).all()), turn
        assert bool((everywhere() == size).all()), turn
        hvd.remove_process_set(part)


def adasum(rank, size):
    """By rueda's kernels, to a rounding of what the CPU side has."""
    if DEVICE == "cuda" and not has_kernels():
        refused(lambda: hvd.allreduce(torch.ones(9, device=DEVICE), op=hvd.Adasum, name="adasum"), "librueda_cuda.so")
        return
    torch.manual_seed(rank)
    for dtype, bound in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
        values = torch.randn(100003).to(dtype)
        on_cpu = hvd.allreduce(values, op=hvd.Adasum, name=f"adasum.{dtype}.cpu").float()
        on_gpu = hvd.allreduce(values.to(DEVICE), op=hvd.Adasum, name=f"adasum.{dtype}.gpu").cpu().float()
        assert (on_gpu - on_cpu).abs().max() <= bound * on_cpu.abs().max(), dtype


def int8_blocks(rank, size):
    """The kernels of Compression.int8 against its operations on the CPU."""
    from rueda.torch._compress_int8 import from_int8, to_int8

    blocks = torch.randn(1000, 256) * torch.logspace(-6, 6, 1000)[:, None]
    wire = to_int8(blocks)
    assert torch.equal(from_int8(wire.to(DEVICE)).cpu(), from_int8(wire)), "from_int8"
    on_gpu = to_int8(blocks.to(DEVICE)).cpu()
    if DEVICE == "cpu" or has_kernels():
        assert torch.equal(on_gpu, wire), "to_int8"
    else:  # PyTorch's own division
        assert torch.allclose(from_int8(on_gpu), from_int8(wire), rtol=1e-2, atol=1e-8), "to_int8"


def has_kernels():
    return pathlib.Path(os.environ["RUEDA_LIBRARY"]).with_name("librueda_cuda.so").exists()


def attention(rank, size):
    """Whose ranks pass rows by NCCL."""
    import rueda.attention as ra

    torch.manual_seed(5)  # the same on all ranks
    full = [torch.randn(1, 64 * size + 5, 4, 64) for _ in range(3)]
    for layout in ("zigzag", "striped"):
        own = [ra.shard_sequence(x, layout=layout) for x in full]
        on_cpu = ra.ring_attention(*own, layout=layout, causal=True)
        on_gpu = ra.ring_attention(*(x.to(DEVICE) for x in own), layout=layout, causal=True)
        assert on_gpu.device.type == DEVICE and torch.allclose(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4), layout


def decoding(rank, size):
    """Queries and partial results go through NCCL, from caches that the ranks share."""
    import rueda.attention as ra

    torch.manual_seed(5)
    lengths = [70, 3, 0, 33]
    for queries in ("same", "own"):
        q = torch.randn(4, 2, 8, 64)
        k, v = (torch.randn(4, 70 // size + 1, 4, 64) for _ in range(2))
        share = slice(None)
        if queries == "own":
            bounds = [sum(4 // size + (i < 4 % size) for i in range(n)) for n in (rank, rank + 1)]  # as the library shares
            share = slice(*bounds)
        for options in ({}, {"window_size": (9, -1), "global_tokens": 2}):
            on_cpu, on_gpu = (
                ra.decode_attention(*(x.to(at) for x in (q[share], k, v)), lengths, queries=queries, **options) for at in ("cpu", DEVICE)
            )
            assert torch.allclose(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-5), (queries, options)


def order_of_streams(rank, size):
    """A collective sees what the kernel before it wrote, the kernel after it what it wrote."""
    side = torch.cuda.Stream()
    for step in range(50):
        stream = side if step % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            big = torch.zeros(1 << 22, device="cuda")
            big.add_(rank + step)
            total = hvd.allreduce(big, op=hvd.Sum, name="ordered")
            del big  # its memory goes to others at once
            torch.full((1 << 22,), -1.0, device="cuda")
            expected = size * step + size * (size - 1) / 2
            assert bool((total == expected).all()), step
    # Started in one stream, synchronised in another, whose kernels use the result.
    for step in range(20):
        with torch.cuda.stream(side):
            handle = hvd.allreduce_async_(torch.full((1 << 20,), float(rank + step), device="cuda"), op=hvd.Sum, name="x")
        total = hvd.synchronize(handle)
        assert bool((total == size * step + size * (size - 1) / 2).all()), f"two streams, step {step}"


def many_small(rank, size):
    """Enough small tensors that they are packed where rueda's kernels are; planned after some steps."""
    for step in range(15):
        tensors = [torch.full((50 + 7 * i,), float(rank + i + step), device=DEVICE) for i in range(40)]
        handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"small.{i}") for i, t in enumerate(tensors)]
        for i, handle in enumerate(handles):
            expected = size * (i + step) + size * (size - 1) / 2
            assert bool((hvd.synchronize(handle) == expected).all()), (step, i)
    if size > 1 and hvd.local_size() == size:
        assert hvd.counter("planned_batches") > 0, "no step plan"


def train(device, compression=hvd.Compression.none, layers=(64, 128, 8)):
    torch.manual_seed(1)
    # No bias before a BatchNorm: its gradient is nothing but rounding, which Adam makes steps of.
    model = torch.nn.Sequential(
        torch.nn.Linear(*layers[:2], bias=False), torch.nn.BatchNorm1d(layers[1]), torch.nn.ReLU(), torch.nn.Linear(*layers[1:])
    )
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    for step in range(20):
        torch.manual_seed(step * 100 + hvd.rank())
        optimizer.zero_grad()
        model(torch.randn(16, layers[0]).to(device)).square().mean().backward()
        if step % 5 == 4:
            optimizer.clip_grad_norm_(1.0)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.check_replicas(optimizer)
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def training(rank, size):
    on_cpu, on_gpu = train("cpu"), train(DEVICE)
    assert torch.allclose(on_cpu, on_gpu, atol=2e-3), (on_cpu - on_gpu).abs().max()
    for name in ("fp16", "bf16", "int8"):
        train(DEVICE, getattr(hvd.Compression, name))
    train(DEVICE, hvd.Compression.topk(0.1))
    train(DEVICE, hvd.Compression.powersgd(2))
    embedding = torch.nn.Embedding(50, 4, sparse=True).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=0.1), named_parameters=embedding.named_parameters()
    )
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.tensor([1, 2, hvd.rank()], device=DEVICE)).sum().backward()
        optimizer.step()


def graph_of_a_step(rank, size):
    """One launch of a graph is one step, with its collectives."""
    data = [torch.zeros(1000 + i, device="cuda") for i in range(6)]
    base = torch.zeros((), device="cuda")

    def step():
        for tensor in data:
            tensor.copy_(base + rank)
        handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"graph.{i}") for i, t in enumerate(data)]
        for handle in handles:
            hvd.synchronize(handle)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # Plans of what came before in this program were given up, so that the next one takes longer.
        for _ in range(200):
            planned = hvd.counter("planned_batches")
            step()
    assert hvd.counter("planned_batches") > planned, "no step plan after 200 steps"
    torch.cuda.synchronize()
    hvd.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    for launch in range(20):
        base.fill_(float(launch))
        graph.replay()
        expected = size * launch + size * (size - 1) / 2
        assert all(bool((t == expected).all()) for t in data), launch
    torch.cuda.synchronize()
    hvd.barrier()


def submit_time(rank, size):
    """Microseconds of the host to start one planned bucket of 12 tensors, with Python's part."""
    data = [torch.zeros(1000, device=DEVICE) for _ in range(12)]
    times = []
    for _ in range(300):
        settle()
        begun = time.perf_counter()
        handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"timed.{i}") for i, t in enumerate(data)]
        times.append(1e6 * (time.perf_counter() - begun))
        for handle in handles:
            hvd.synchronize(handle)
    if rank == 0:
        spent = sorted(times[100:])[100]
        print(f"figure a planned bucket of 12 tensors is started in {spent:.0f} us with Python's part", flush=True)


def death(rank, size):
    """The last rank is killed in a collective; the others must hear of it, although their GPUs wait for it."""
    data = torch.ones(1 << 20, device=DEVICE)
    for _ in range(12):
        hvd.allreduce_(data, op=hvd.Average, name="doomed")
    settle()
    hvd.barrier()
    begun = time.monotonic()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while time.monotonic() < begun + 30:
            hvd.allreduce_(data, op=hvd.Average, name="doomed")
        raise SystemExit("nobody noticed")
    except hvd.HorovodInternalError as error:
        spent = time.monotonic() - begun
        print(f"rank {rank} heard of it after {spent:.1f} s: {str(error).splitlines()[0]}", flush=True)
        if spent > 10:
            raise SystemExit("too late") from error
    hvd.shutdown()


SECTIONS = {
    "collectives": collectives,
    "messages": messages,
    "pool": pool,
    "dtypes": dtypes,
    "process-sets": process_sets,
    "adasum": adasum,
    "int8": int8_blocks,
    "streams": order_of_streams,
    "small": many_small,
    "training": training,
    "attention": attention,
    "decoding": decoding,
    "graph": graph_of_a_step,
    "submit": submit_time,
}


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--skip", default="")
    parser.add_argument("--only", default=",".join(SECTIONS), help="also: death")
    options = parser.parse_args()
    DEVICE = options.device
    gpu_sharing.prepare()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if DEVICE == "cuda":
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    for name in options.only.split(","):
        if name in options.skip.split(","):
            continue
        if rank == 0:
            print(f"begin {name}", flush=True)
        {**SECTIONS, "death": death}[name](rank, size)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    print(f"rank {rank} of {size}: the same on {where}", flush=True)


main()
