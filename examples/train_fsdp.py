"""Trains the digits network with its parameters, gradients and optimizer state split over the ranks (FSDP2).

    ruedarun -np 2 python examples/train_fsdp.py                       two ranks
    torchrun --nproc-per-node 2 examples/train_fsdp.py --backend gloo  the same on Gloo

Each layer's parameters are gathered before it computes and its gradients scattered afterwards. The
checkpoint (``--checkpoint FOLDER``) is written by all ranks, each its own part, and read by any number of them.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_ddp import train_epoch
from train_digits import load_digits, make_model


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a digit classifier with FSDP2.")
    parser.add_argument("--backend", default="rueda")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="written at the end; resumed from")
    return parser.parse_args()


def make_sharded():
    """The network, split over all ranks: one group of parameters for each layer that has some."""
    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    args = parse_arguments()
    dist.init_process_group(args.backend)
    torch.manual_seed(1)  # all ranks cut their parts out of the same parameters
    images, labels, test_images, test_labels = load_digits()
    model = make_sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if args.checkpoint and os.path.exists(args.checkpoint):
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        checkpoint.load(parts, checkpoint_id=args.checkpoint)
        set_state_dict(
            model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
        )
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, images, labels, epoch, args.batch_size)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} loss {loss:.6f}", flush=True)
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"test accuracy {right:.4f}", flush=True)
    if args.checkpoint:
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        checkpoint.save(parts, checkpoint_id=args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
