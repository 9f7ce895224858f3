"""Ways to train a model on several ranks that the benchmarks of sharding compare.

    alone        no communication
    plain        hvd.DistributedOptimizer at its defaults
    state, gradients, host       the same with shard=; host: shard="gradients", share="host"
    parameters   the same with shard="parameters", cut as for fsdp2
    ddp          DDP over Gloo, gradients as views of its buckets
    copies       DDP over Gloo at its defaults
    zero         ddp and ZeroRedundancyOptimizer over Gloo
    fsdp2        fully_shard over Gloo
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import rueda.torch as hvd

SHARDED = {"plain": {}, "state": {"shard": "state"}, "gradients": {"shard": "gradients"},
           "host": {"shard": "gradients", "share": "host"}, "parameters": {"shard": "parameters", "units": 0}}


def transformer(layers=8):
    """With 8 layers of 26 M parameters."""
    torch.manual_seed(3)
    blocks = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(layers)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(512, 1000))


def prepare(way, model, kind):
    """(model, optimizer) of that kind."""
    more = {"module": model} if way == "parameters" else {}
    if way == "fsdp2":
        mesh = dist.DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
    elif way in ("ddp", "copies", "zero"):
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=way != "copies")
    if way == "zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=1e-5)
    optimizer = kind(model.parameters(), lr=1e-5)
    if way in SHARDED:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **SHARDED[way], **more)
    return model, optimizer
