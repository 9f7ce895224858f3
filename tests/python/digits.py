"""The digits of examples/data for tests of convergence: a small network, shares of a batch, accuracy."""

import gzip
import pathlib

import numpy as np
import rueda.torch as hvd
import torch

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "digits.csv.gz"


def digits():
    """Images and labels: (train x, train y, test x, test y)."""
    with gzip.open(DATA, "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    images, labels = table[:, :64] / 16, table[:, 64].long()
    is_test = torch.arange(len(labels)) % 5 == 0
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def make_digits_model():
    """The same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def share(count, batch, epoch):
    """This rank's numbers of each global batch of an epoch; whole batches only."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    for first in range(0, count - batch + 1, batch):
        yield order[first : first + batch][hvd.rank() :: hvd.size()]


def accuracy(model, x, y):
    """Share of digits that are recognised."""
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
