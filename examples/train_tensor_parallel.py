"""Trains a small network whose layers are split over the ranks (tensor parallel, DTensor).

    ruedarun -np 2 python examples/train_tensor_parallel.py                       two ranks
    torchrun --nproc-per-node 2 examples/train_tensor_parallel.py --backend gloo  the same on Gloo

All ranks see the same digits. The first layer is split by columns, the second by rows, so one allreduce
in the forward pass and one in the backward pass make the ranks' parts a whole.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from train_digits import load_digits


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Trains a digit classifier with tensor parallelism."
    )
    parser.add_argument("--backend", default="rueda")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def make_split():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def main():
    args = parse_arguments()
    dist.init_process_group(args.backend)
    torch.manual_seed(1)
    images, labels, test_images, test_labels = load_digits()
    model = make_split()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for batch in order.split(args.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} loss {torch.stack(losses).mean().item():.6f}", flush=True)
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"test accuracy {right:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
