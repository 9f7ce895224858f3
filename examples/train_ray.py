"""Trains a small network on handwritten digits in PyTorch, on actors of Ray.

    python examples/train_ray.py --workers 2                  a Ray of its own, on this machine
    python examples/train_ray.py --workers 8 --address auto   on the cluster that this machine belongs to

`train` is what each rank runs; nothing in it knows of Ray.
"""

import argparse
import gzip
import pathlib

import ray
from rueda.ray import RayExecutor

DATA = pathlib.Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def train(data, epochs, lr):
    """(rank, share of the test digits that are recognised, loss of each epoch)"""
    import numpy as np
    import rueda.torch as hvd
    import torch
    import torch.nn.functional as F

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    with gzip.open(data, "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    images, labels = table[:, :64] / 16, table[:, 64].long()
    is_test = torch.arange(len(labels)) % 5 == 0
    per_rank = int((~is_test).sum()) // hvd.size()
    mine = torch.nonzero(~is_test).flatten()[hvd.rank() * per_rank :][:per_rank]

    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    losses = []
    for _ in range(epochs):
        for batch in mine[torch.randperm(len(mine))].split(24):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    right = (model(images[is_test]).argmax(1) == labels[is_test]).float().mean().item()
    return hvd.rank(), right, losses


def main():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with rueda on Ray.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--address", help="of a cluster that runs; default: one of its own")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002, help="of one rank")
    args = parser.parse_args()

    if args.address:
        ray.init(args.address)
    else:
        ray.init(num_cpus=args.workers, include_dashboard=False)
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=args.workers)
    executor.start()
    try:
        for rank, right, losses in executor.run(train, [DATA, args.epochs, args.lr]):
            print(f"rank {rank}: loss {losses[-1]:.4f}  accuracy {right:.4f}")
    finally:
        executor.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
