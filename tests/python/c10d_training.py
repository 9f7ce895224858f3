"""What tests of training share: a network, its steps, and the same run on a group of rueda and one of Gloo."""

import contextlib

import torch
import torch.distributed as dist
from c10d_cases import default_group
from torch.nn.parallel import DistributedDataParallel


class Network(torch.nn.Module):
    """Three layers, of which the last may be left out; a buffer that DDP keeps alike."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 40), torch.nn.BatchNorm1d(40)
        self.second, self.extra = torch.nn.Linear(40, 30), torch.nn.Linear(30, 30)
        self.last = torch.nn.Linear(30, 4)

    def forward(self, x, short=False):
        x = self.second(torch.relu(self.norm(self.first(x))))
        return self.last(x if short else self.extra(x).relu())


def make():
    torch.manual_seed(7)
    return Network()


def batches(count=4):
    """This rank's."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [torch.randn(6, 8, generator=generator) for _ in range(count)]


def parameters(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(model, optimizer=None, short=lambda step: False):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, x in enumerate(batches()):
        optimizer.zero_grad()
        arguments = {"short": True} if short(step) else {}
        model(x, **arguments).square().mean().backward()
        optimizer.step()
    return parameters(model)


_groups_of_gloo = []  # one that a callback in its own thread lets go of last ends the process


@contextlib.contextmanager
def both():
    """The default group, of rueda, and one of Gloo."""
    with default_group() as ours:
        _groups_of_gloo.append(dist.new_group(backend="gloo"))
        yield ours, _groups_of_gloo[-1]


def compare(run, tolerance=1e-6):
    """run(group) gives a tensor."""
    with both() as groups:
        ours, theirs = [run(group) for group in groups]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=tolerance)


def ddp(group, bucket_cap_mb=0.004, **arguments):
    return DistributedDataParallel(
        make(), process_group=group, bucket_cap_mb=bucket_cap_mb, **arguments
    )
