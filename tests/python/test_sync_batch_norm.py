"""SyncBatchNorm: what plain batch normalization gives for all ranks' batches together."""

import rueda.torch as hvd
import torch
from expect import raises
from worlds import ranks

WORLD = "torch"

LAYERS = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
LAYERS[5] = torch.nn.BatchNorm3d


def inputs(shape, rows=None):
    """Every rank's batch; ``rows[r]`` samples on rank r."""
    rows = rows or [4] * hvd.size()
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn((n,) + shape, generator=generator, dtype=torch.float64) * (r + 1) + r
        for r, n in enumerate(rows)
    ]


def compare(shape, dtype, rows=None, **options):
    """One layer, two steps: outputs, statistics, gradients of input, weight and bias."""
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5}.get(dtype, 5e-2)
    where = dict(rtol=tolerance, atol=tolerance)
    channels, rank = shape[0], hvd.rank()
    plain = LAYERS[len(shape) + 1](channels, **options).double()
    if plain.affine:
        with torch.no_grad():
            plain.weight.copy_(torch.linspace(0.5, 2, channels))
            plain.bias.copy_(torch.linspace(-1, 1, channels))
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    mine = hvd.SyncBatchNorm(channels, **options).to(kept)
    mine.load_state_dict(plain.state_dict())
    for factor in (1.0, 3.0):
        parts = [x * factor for x in inputs(shape, rows)]
        whole = torch.cat(parts).requires_grad_()
        own = parts[rank].to(dtype).requires_grad_()
        slope = torch.linspace(-1, 2, whole.numel(), dtype=torch.float64).reshape(whole.shape)
        counts = [len(part) for part in parts]
        expected, result = plain(whole), mine(own)
        assert result.dtype == dtype
        (expected * slope).sum().backward()
        (result * slope.split(counts)[rank].to(dtype)).sum().backward()
        torch.testing.assert_close(result.double(), expected.split(counts)[rank], **where)
        torch.testing.assert_close(own.grad.double(), whole.grad.split(counts)[rank], **where)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(mine.named_buffers())[name].to(buffer), buffer, **where)
    for name, p in plain.named_parameters():
        total = hvd.allreduce(dict(mine.named_parameters())[name].grad.double(), op=hvd.Sum)
        torch.testing.assert_close(total, p.grad, rtol=10 * tolerance, atol=20 * tolerance)
    plain.eval(), mine.eval()
    parts = inputs(shape, rows)
    if plain.running_mean is not None:
        torch.testing.assert_close(mine(parts[rank].to(kept)).double(), plain(parts[rank]), **where)


@ranks(1, 3)
def test_it_is_plain_batch_normalization_of_the_whole_batch():
    for shape in ((3,), (3, 5), (2, 3, 4), (2, 2, 3, 2)):
        compare(shape, torch.float64)
    compare((3, 5), torch.float32)
    compare((3,), torch.float32, affine=False)
    compare((3,), torch.float64, track_running_stats=False)
    compare((3,), torch.float64, momentum=None, eps=0.1)
    compare((3, 2, 2), torch.bfloat16)


@ranks(3)
def test_batches_of_different_sizes_and_an_empty_one():
    for rows in ([5, 1, 2], [1, 4, 0], [0, 7, 1]):
        compare((3,), torch.float64, rows[: hvd.size()])


@ranks(3)
def test_a_model_converted_trains_like_one_process_with_the_whole_batch():
    def model():
        torch.manual_seed(3)
        shared = torch.nn.BatchNorm2d(4)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            shared,
            torch.nn.ReLU(),
            torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), shared),
            torch.nn.Flatten(),
            torch.nn.BatchNorm1d(36),
            torch.nn.Linear(36, 2),
        ).double()

    alone, mine = model(), model()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)  # made before
    weight = mine[5].weight
    assert hvd.convert_sync_batchnorm(mine) is mine
    assert mine[1] is mine[3][1] and isinstance(mine[1], hvd.SyncBatchNorm)
    assert mine[5].weight is weight and not isinstance(mine[0], hvd.SyncBatchNorm)
    optimizer = hvd.DistributedOptimizer(optimizer, mine.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        parts = [x + step for x in inputs((1, 5, 5))]
        plain.zero_grad()
        alone(torch.cat(parts)).square().mean().backward()
        plain.step()
        optimizer.zero_grad()
        mine(parts[hvd.rank()].contiguous()).square().mean().backward()
        optimizer.step()
    for (name, a), b in zip(alone.state_dict().items(), mine.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8, msg=lambda m: f"{name}: {m}")
    assert mine.state_dict().keys() == alone.state_dict().keys()
    hvd.check_replicas(mine.state_dict())


@ranks(3)
def test_what_it_refuses():
    layer = hvd.SyncBatchNorm(3)
    with raises(ValueError, "at least 2D"):
        layer(torch.ones(3))
    with raises(ValueError, "expected 3 channels in dimension 1, got 4"):
        layer(torch.ones(2, 4))
    with raises(ValueError, "more than 1 value per channel over all ranks"):
        layer(torch.ones(int(hvd.rank() == 0), 3))
    with raises(ValueError, "does not know its channels yet"):
        hvd.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())
    layer.eval()
    if hvd.rank() == 0:  # evaluation is each rank's own
        layer(torch.ones(1, 3))
