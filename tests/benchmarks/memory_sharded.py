"""Memory that training a model takes, one job for each way: memory_sharded.py WAY LAYERS.

The kernel's figure: the proportional share (PSS) of all ranks together, between two steps, minus what it was before the
model was made. Activations are gone then, and freed memory is given back to the system. WAY is one of sharded_ways.py.
"""

import ctypes
import gc
import json
import sys

import torch
import torch.distributed as dist

import rueda.torch as hvd
from sharded_ways import prepare, transformer


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


def main(way, layers):
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    for small in (True, False):  # the first time libraries take what they need
        before = of_all()
        model, optimizer = prepare(way, transformer(1 if small else layers), torch.optim.Adam)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2, 512)).square().mean().backward()
            optimizer.step()
        took = of_all() - before
        if small:
            del model, optimizer
    count = sum(p.numel() for p in transformer(layers).parameters())
    if dist.get_rank() == 0:
        print("memory", json.dumps({"way": way, "parameters": count, "bytes": took}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    hvd.shutdown()


main(sys.argv[1], int(sys.argv[2]))
