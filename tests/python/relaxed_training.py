"""What tests of ranks that meet less often share: batches of each rank and step, training, comparisons."""

import rueda.torch as hvd
import torch


def batch(step, rank=None):
    seed = 1000 * step + (hvd.rank() if rank is None else rank)
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))


def loss_of(model, step, rank=None):
    return model(batch(step, rank)).square().mean()


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def check_alike(model, other):
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(p, q), name


def check_close(model, other):
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def differs(model):
    """Whether any rank has other parameters."""
    try:
        hvd.check_replicas(model)
    except hvd.ReplicasDiffer:
        return True
    return False
