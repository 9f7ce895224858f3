"""Memory that training a model takes, one job for each way: memory_sharded.py WAY LAYERS.

The kernel's figure: the proportional share (PSS) of all ranks together, between two steps, minus what it was before the
model was made. Activations are gone then, and freed memory is given back to the system. Ways as in peer_sharded.py, and
copies: DDP with buckets of its own, its default.
"""

import ctypes
import gc
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import rueda.torch as hvd

OPTIONS = {"plain": {}, "state": {"shard": "state"}, "gradients": {"shard": "gradients"},
           "host": {"shard": "gradients", "share": "host"}, "parameters": {"shard": "parameters", "units": 0}}


def model_of(layers):
    torch.manual_seed(3)
    blocks = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(layers)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(512, 1000))


def pss():
    """Bytes of this process, shared pages by their shares."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def of_all():
    """Of all ranks, when all are here."""
    dist.barrier()
    own = torch.tensor([float(pss())], dtype=torch.float64)
    dist.barrier()
    dist.all_reduce(own)
    return own.item()


def prepare(way, model):
    options = {}
    if way == "fsdp2":
        mesh = dist.DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
    elif way in ("ddp", "copies", "zero"):
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=way != "copies")
    elif way == "parameters":
        options = {"module": model}
    if way == "zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    if way in OPTIONS:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **OPTIONS[way], **options)
    return model, optimizer


def main(way, layers):
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    for small in (True, False):  # the first time libraries take what they need
        before = of_all()
        model, optimizer = prepare(way, model_of(1 if small else layers))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2, 512)).square().mean().backward()
            optimizer.step()
        took = of_all() - before
        if small:
            del model, optimizer
    count = sum(p.numel() for p in model_of(layers).parameters())
    if dist.get_rank() == 0:
        print("memory", json.dumps({"way": way, "parameters": count, "bytes": took}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    hvd.shutdown()


main(sys.argv[1], int(sys.argv[2]))
