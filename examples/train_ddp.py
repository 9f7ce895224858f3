"""Trains the digits network with PyTorch's DistributedDataParallel on rueda.

    ruedarun -np 2 python examples/train_ddp.py                       two ranks
    torchrun --nproc-per-node 2 examples/train_ddp.py                 the same
    torchrun --nproc-per-node 2 examples/train_ddp.py --backend gloo  the same on Gloo

The one word is the backend's name. Whoever has rueda installed needs no import of it.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from train_digits import load_digits, make_model


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with DDP.")
    parser.add_argument("--backend", default="rueda")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def train_epoch(model, optimizer, images, labels, epoch, batch_size):
    """One pass over the training digits; returns the mean loss of all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    steps = len(order) // (batch_size * size)
    total = torch.zeros(())
    for step in range(steps):
        whole = order[step * batch_size * size : (step + 1) * batch_size * size]
        mine = whole[rank::size]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()  # DDP averages the gradients meanwhile
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / (steps * size)


def main():
    args = parse_arguments()
    dist.init_process_group(args.backend)
    torch.manual_seed(1 + dist.get_rank())  # DDP gives all ranks the parameters of rank 0
    images, labels, test_images, test_labels = load_digits()
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, images, labels, epoch, args.batch_size)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} loss {loss:.6f}", flush=True)
    if dist.get_rank() == 0:
        right = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"test accuracy {right:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
