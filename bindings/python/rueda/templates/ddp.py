"""PyTorch's own DistributedDataParallel on the ranks of a rueda job:  ruedarun -np 2 python NAME

rueda starts and supervises the ranks, and lets them meet; gradients go through torch.distributed.
"""

import os

import rueda as hvd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 100


def join():
    """torch.distributed's group over the ranks of this job; no address or port need be known before."""
    hvd.init()
    here = hvd.allgather_object(os.uname().nodename)[0]
    alone = len(set(hvd.allgather_object(os.uname().nodename))) == 1
    host = "127.0.0.1" if alone else here
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(store.port if store else None, root_rank=0)
    store = store or dist.TCPStore(host, port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())


def main():
    join()
    torch.manual_seed(0)  # the same parameters everywhere
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1 + hvd.rank())  # other data on each rank
    for step in range(STEPS):
        x = torch.randn(32, 10, generator=data)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if hvd.rank() == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
