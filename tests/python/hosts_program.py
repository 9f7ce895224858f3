"""What the ranks of test_hosts.py run: python hosts_program.py SCENE."""

import contextlib
import os
import sys

import numpy as np
import rueda.numpy as hvd


def tell(**values):
    print(*(f"{name}={value}" for name, value in values.items()), flush=True)


def collectives():
    rank, size = hvd.rank(), hvd.size()
    everyone = range(size)
    for count in (1, 1000, 300_001):
        ramp = np.arange(count, dtype=np.float32) % 1000
        got = hvd.allreduce(ramp + rank, op=hvd.Sum, name=f"sum {count}")
        assert np.array_equal(got, size * ramp + sum(everyone))
        got = hvd.allreduce((ramp + rank).astype(np.int32), op=hvd.Max, name=f"max {count}")
        assert np.array_equal(got, ramp.astype(np.int32) + size - 1)
        blocks = [np.full((count + r, 2), r, np.int16) for r in everyone]
        got = hvd.allgather(blocks[rank], name=f"gather {count}")
        assert np.array_equal(got, np.concatenate(blocks))
        for root in (0, size - 1):
            got = hvd.broadcast(ramp * (rank + 1), root_rank=root, name=f"from {root} {count}")
            assert np.array_equal(got, ramp * (root + 1))
        rows = np.arange(size * count, dtype=np.float64)
        got = hvd.reducescatter(rows + rank, op=hvd.Sum, name=f"scatter {count}")
        assert np.array_equal(got, size * rows[rank * count : (rank + 1) * count] + sum(everyone))
        splits = [count + (rank + to) % 3 for to in everyone]
        sent = np.repeat(np.arange(size) + 100 * rank, splits)
        got, came = hvd.alltoall(sent, splits=splits, name=f"all {count}")
        expected = [count + (source + rank) % 3 for source in everyone]
        assert list(came) == expected
        assert np.array_equal(got, np.repeat(rank + 100 * np.arange(size), expected))
    members = hvd.add_process_set([r for r in everyone if r != 1]) if size > 2 else None
    if members and members.included():
        got = hvd.allreduce(np.ones(70_000), op=hvd.Sum, name="of a set", process_set=members)
        assert np.array_equal(got, np.full(70_000, members.size()))
    hvd.barrier()
    print("all right", flush=True)
    tell(local_size=hvd.local_size(), cross_size=hvd.cross_size(), shm_bytes=hvd.counter("shm_bytes"))


def crossing():
    data = np.ones(4_000_000, np.float32)
    hvd.barrier()
    before = hvd.counter("tcp_bytes")
    hvd.allreduce(data, op=hvd.Sum, name="data")
    tell(payload=data.nbytes, tcp_bytes=hvd.counter("tcp_bytes") - before)


def until_lost():
    data = np.ones(50_000, np.float32)
    hvd.allreduce(data, name="steps")
    tell(running=os.getpid())
    try:
        while True:
            hvd.allreduce(data, name="steps")
    except hvd.HorovodInternalError as error:
        print("lost:", str(error).replace("\n", " "), flush=True)
    sys.exit(3)


def slow():
    data = np.ones(1_000_000, np.float32)
    hvd.allreduce(data, name="slow")
    hvd.barrier()
    print("all right", flush=True)


def crowded():
    """Ranks 0 and 1 fill the cable between their hosts; rank 2, on the host of rank 0, has nothing to say."""
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        hvd.allreduce(np.ones(200_000, np.float32), name="much", process_set=pair)
    hvd.barrier()
    print("all right", flush=True)


def sharded():
    """Parameters after steps with shards, and without."""
    import rueda.torch as torch_hvd
    import torch

    def train(late=False, **options):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(300, 501), torch.nn.Tanh(), torch.nn.Linear(501, 200))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if late:
            options["module"] = model
        optimizer = torch_hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 300, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(x).square().mean().backward()
            optimizer.step()
        whole = torch_hvd.gathered(model) if options.get("shard") == "parameters" else contextlib.nullcontext()
        with whole:
            return torch.cat([p.detach().flatten() for p in model.parameters()]), optimizer.state_dict()

    expected, _ = train()
    for options in (
        {"shard": "state"},
        {"shard": "gradients", "late": True},
        {"shard": "state", "share": "host"},
        {"shard": "parameters", "late": True},
    ):
        got, state = train(**options)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        assert sum(v["momentum_buffer"].numel() for v in state["state"].values()) == got.numel()
        torch_hvd.check_replicas([("all", got)])
    if hvd.size() == 4:
        uneven = hvd.add_process_set([0, 1, 2])
        if uneven.included():
            try:
                train(shard="state", share="host", process_set=uneven)
            except ValueError as error:
                assert "2 with rank 0, 1 with rank 2" in str(error), error
            else:
                raise AssertionError("hosts with unequal numbers of ranks were taken")
    print("all right", flush=True)


SCENES = {"collectives": collectives, "bytes": crossing, "lost": until_lost, "slow": slow, "crowded": crowded, "sharded": sharded}
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    print("not met:", str(error).replace("\n", " "), flush=True)
    sys.exit(3)
if sys.argv[1] in SCENES:
    SCENES[sys.argv[1]]()
hvd.shutdown()
