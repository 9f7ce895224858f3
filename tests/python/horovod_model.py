"""What the scripts of `horovod_script` train; gradients are whole numbers, of step and rank and not of parameters.

So their sum is exact in any order, and `replay` makes the same steps in one process.
"""

import hashlib

import torch

WIDTH, ROWS, SAMPLES = 8, 4, 96
RATE = 1 / 64


def digest_of(models):
    values = [each.detach().contiguous().numpy().tobytes() for model in models for each in model.state_dict().values()]
    return hashlib.sha256(b"".join(values)).hexdigest()[:16]


class Net(torch.nn.Module):
    """Linear in its parameters; ``count`` becomes minus the sum of all that ranks have added."""

    def __init__(self, features):
        super().__init__()
        self.fc = torch.nn.Linear(WIDTH, 3)
        self.table = torch.nn.Embedding(16, 3, sparse="sparse" in features)
        with torch.no_grad():  # sums of whole multiples of a rate are exact, too
            self.table.weight.mul_(64).round_().div_(64)
        self.count = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.norm = torch.nn.BatchNorm1d(WIDTH) if "norm" in features else torch.nn.Identity()

    def forward(self, x):
        return self.fc(self.norm(x)) + self.table(x[:, 0].abs().to(torch.int64))


def made(features):
    """Models and plain optimizers, the same in each process."""
    torch.set_num_threads(1)
    models, optimizers = [], []
    for number in range(2 if "two" in features else 1):
        torch.manual_seed(11 + number)
        model = Net(features)
        layers = [p for p in model.parameters() if p is not model.count]
        groups = [{"params": [model.count], "lr": 1.0}, {"params": layers}]
        if number == 1:
            optimizers.append(torch.optim.Adam(groups, lr=RATE))
        else:
            optimizers.append(torch.optim.SGD(groups, lr=RATE))
            optimizers[0].param_groups[1]["momentum"] = 0 if "sparse" in features else 0.5
        models.append(model)
    return models, optimizers


def whole(shape, *seeds):
    generator = torch.Generator().manual_seed(sum(seed * 1000**i for i, seed in enumerate(seeds)))
    return torch.randint(-3, 4, shape, generator=generator).float()


def loss_of(model, step, rank, part=0):
    x, y = whole((ROWS, WIDTH), step, rank, part, 1), whole((ROWS, 3), step, rank, part, 2)
    loss = (model(x) * y).sum()
    return loss if part else loss + model.count * (step + 1)


def rate_of(step, size, features):
    """Of the layers, in that step."""
    rate = RATE * (size if "rescale" in features else 1)
    return rate * 0.5 ** (step // 8) if "schedule" in features else rate


def replay(sizes, features):
    """The digests after each step, of which the numbers of ranks are given."""
    models, optimizers = made(features)
    for step, size in enumerate(sizes):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            for rank in range(size):
                for part in range(2 if "accumulate" in features else 1):
                    loss_of(model, step, rank, part).backward()
            if optimizer is optimizers[0]:
                optimizer.param_groups[1]["lr"] = rate_of(step, size, features)
            optimizer.step()
        yield digest_of(models)
