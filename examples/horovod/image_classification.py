"""Image classification in Horovod's API: handwritten digits, a convolutional network.

    ruedarun --horovod -np 2 python examples/horovod/image_classification.py
    horovodrun -np 2 python examples/horovod/image_classification.py

Knows nothing of rueda: the same file runs on Horovod. Shows the usual shape of such a script: a
sampler that splits the data, a scaled learning rate with a warm-up, gradients compressed to 16 bits,
clipping between synchronize() and step(), averaged metrics, and a checkpoint written by rank 0.
"""

import argparse
import gzip
import math
import os
import pathlib

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "digits.csv.gz"


def load_digits():
    """Images scaled to 0..1 and labels: (training set, test set)."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64]).long()
    test = torch.arange(len(labels)) % 5 == 0
    dataset = torch.utils.data.TensorDataset
    return dataset(images[~test], labels[~test]), dataset(images[test], labels[test])


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(32)
        self.fc = torch.nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


class Mean:
    """A number averaged over the batches and ranks of an epoch."""

    def __init__(self, name):
        self.name, self.total, self.count = name, torch.zeros(()), 0

    def add(self, value):
        self.total += value.detach()
        self.count += 1

    def result(self):
        return hvd.allreduce(self.total / max(1, self.count), name=self.name).item()


def set_learning_rate(optimizer, base, epoch, batch, batches):
    """From one rank's rate up to that of all during the first epoch."""
    progress = min(1.0, epoch + batch / batches)
    rate = base * (1 + (hvd.size() - 1) * progress)
    for group in optimizer.param_groups:
        group["lr"] = rate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--checkpoint", help="file that rank 0 writes after each epoch")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    if torch.cuda.is_available() and hvd.cuda_built():
        torch.cuda.set_device(hvd.local_rank())

    train, test = load_digits()
    sampler = torch.utils.data.distributed.DistributedSampler(
        train, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, sampler=sampler)

    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-5)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        loss_mean = Mean("train_loss")
        for batch, (images, labels) in enumerate(loader):
            set_learning_rate(optimizer, args.lr, epoch, batch, len(loader))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            loss_mean.add(loss)
        loss = loss_mean.result()

        model.eval()
        right = Mean("accuracy")
        with torch.no_grad():
            for images, labels in torch.utils.data.DataLoader(test, batch_size=120):
                right.add((model(images).argmax(1) == labels).float().mean())
        accuracy = right.result()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
            if args.checkpoint:
                torch.save(model.state_dict(), args.checkpoint + ".new")
                os.replace(args.checkpoint + ".new", args.checkpoint)
        assert math.isfinite(loss)


if __name__ == "__main__":
    main()
