"""Loss curves of 100 steps in every stage, against those without shards: the same sums in the same order, so the same bits."""

import rueda.torch as hvd
import torch
from worlds import ranks

WORLD = "torch"
STAGES = {
    "state": {"shard": "state"},
    "gradients": {"shard": "gradients"},
    "host": {"shard": "gradients", "share": "host"},
    "parameters": {"shard": "parameters"},
}


def curve(kind, **options):
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), layer, torch.nn.Flatten(), torch.nn.Linear(32 * 4, 5))
    if options.get("shard") == "parameters":
        options.update(module=model, units=0)
    optimizer = kind(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    losses, generator = [], torch.Generator().manual_seed(hvd.rank())
    for _ in range(100):
        x = torch.randn(6, 4, 10, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x.mean(1)[:, :5]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@ranks(2, 3, slow=(1, 4))  # one rank shares nothing; four are as three
def test_losses_of_100_steps_are_those_without_shards():
    for kind in (torch.optim.SGD, torch.optim.Adam):
        expected = curve(kind)
        assert sum(expected[-10:]) < sum(expected[:10])
        for name, options in STAGES.items():
            assert curve(kind, **options) == expected, (kind, name)
