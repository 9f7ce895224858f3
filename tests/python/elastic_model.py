"""A model whose training in an elastic job can be checked exactly, and replayed in one process."""

import hashlib

import torch

RATE, MOMENTUM = 0.01, 0.9


class Model(torch.nn.Module):
    """Float layers, with the same gradient on every rank, and a sum that shows whose gradients are in each step."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        self.sums = torch.nn.Parameter(torch.zeros(32, dtype=torch.float64))  # by member

    def loss(self, step, member):
        """Its gradient of a member's sum is the step's number + 1."""
        batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(step))
        return self.layers(batch).square().mean() + self.sums[member] * (step + 1)

    def digest(self):
        values = [value.detach().numpy().tobytes() for value in self.parameters()]
        return hashlib.sha256(b"".join(values)).hexdigest()[:16]


def made():
    """Model and plain optimizer, the same in each process."""
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = Model()
    groups = [{"params": [model.sums]}, {"params": model.layers.parameters(), "lr": RATE, "momentum": MOMENTUM}]
    return model, torch.optim.SGD(groups, lr=1.0)


def replay(contributions):
    """Digests after each step, of which the members are given whose gradients are in it: three at most."""
    model, optimizer = made()
    for step, members in enumerate(contributions):
        optimizer.zero_grad()
        model.loss(step, 0).backward()
        model.sums.grad = torch.zeros_like(model.sums)
        model.sums.grad[list(members)] = step + 1
        for p in model.layers.parameters():
            p.grad *= len(members)  # exactly what the sum of three is, in any order
        optimizer.step()
        yield model.digest()
