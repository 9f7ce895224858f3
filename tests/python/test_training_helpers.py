"""Learning-rate warm-up, averaged metrics, the sampler, loaders of different lengths."""

import math

import rueda.torch as hvd
import torch
from expect import raises
from worlds import ranks

WORLD = "torch"


def make_optimizer(**options):
    w = torch.nn.Parameter(torch.zeros(2))
    options.setdefault("momentum", 0.8)
    return hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.5, **options), [("w", w)])


@ranks(1, 3)
def test_warm_up_grows_linearly_to_the_number_of_ranks_and_corrects_momentum():
    optimizer = make_optimizer()
    schedule = hvd.LearningRateWarmup(optimizer, 4, then=lambda step: 0.5 ** (step // 2))
    n = hvd.size()
    expected = [0.5 * (1 + (n - 1) * step / 4) for step in range(4)] + [0.5 * n] * 2
    expected += [0.25 * n] * 2
    group, before, state = optimizer.param_groups[0], None, None
    for step, rate in enumerate(expected):
        assert math.isclose(group["lr"], rate), (step, group["lr"], rate)
        ratio = rate / before if before and step <= 4 else 1
        assert math.isclose(group["momentum"], 0.8 * ratio), (step, group["momentum"])
        optimizer.step()
        schedule.step()
        before = rate
        if step == 1:
            state = schedule.state_dict(), optimizer.state_dict()
    again = make_optimizer()
    resumed = hvd.LearningRateWarmup(again, 4)
    again.load_state_dict(state[1])
    resumed.load_state_dict(state[0])
    assert math.isclose(again.param_groups[0]["lr"], expected[2])
    again.step()
    resumed.step()
    assert math.isclose(again.param_groups[0]["lr"], expected[3])

    optimizer = make_optimizer(momentum=0.0)
    hvd.LearningRateWarmup(optimizer, 0, scale=7.0)
    assert optimizer.param_groups[0]["lr"] == 3.5
    with raises(ValueError, "warmup_steps"):
        hvd.LearningRateWarmup(optimizer, -1)


@ranks(1, 3)
def test_metrics_are_averaged_and_names_compared():
    rank, size = hvd.rank(), hvd.size()
    mine = {"loss": torch.tensor([float(rank)]), "accuracy": 0.5}
    if rank == 1:
        mine = dict(reversed(mine.items()))
    result = hvd.average_metrics(mine)
    assert list(result) == list(mine) and result["accuracy"] == 0.5
    assert math.isclose(result["loss"], (size - 1) / 2)
    weight = rank  # rank 0 counts for nothing, so its NaN does not matter
    value = float("nan") if rank == 0 and size > 1 else float(rank)
    if size > 1:
        result = hvd.average_metrics({"loss": value}, weight=weight)
        assert math.isclose(result["loss"], (1 + 4) / 3)
        with raises(ValueError, "rank 2 has other names than rank 0"):
            hvd.average_metrics({"loss" if rank < 2 else "los": 1.0})
        with raises(ValueError, "rank 1 has other names than rank 0"):
            hvd.average_metrics({str(i): 1.0 for i in range(1 + rank % 2)})
    assert hvd.average_metrics({}) == {}
    with raises(ValueError, "weights of all ranks are 0"):
        hvd.average_metrics({"a": 1.0}, weight=0)
    with raises(ValueError, "negative"):
        hvd.average_metrics({"a": 1.0}, weight=-1)


def everyones(sampler):
    return hvd.allgather_object(list(sampler))


@ranks(1, 3)
def test_every_sample_is_dealt_once_or_as_asked():
    size = hvd.size()
    for total in (0, 1, 2, 7, 12):
        for uneven in ("pad", "drop", "keep"):
            for shuffle in (False, True):
                sampler = hvd.DistributedSampler(range(total), shuffle, 3, uneven)
                dealt = everyones(sampler)
                assert len(dealt[hvd.rank()]) == len(sampler)
                flat = [i for part in dealt for i in part]
                lengths = [len(part) for part in dealt]
                if uneven == "keep":
                    assert sorted(flat) == list(range(total)), dealt
                    assert max(lengths) - min(lengths) <= 1
                else:
                    assert len(set(lengths)) == 1, dealt
                if uneven == "drop":
                    assert len(set(flat)) == len(flat) == total // size * size
                if uneven == "pad":
                    assert set(flat) == set(range(total)) and len(flat) < total + size
    sampler = hvd.DistributedSampler(30, seed=1)
    first = list(sampler)
    assert list(sampler) == first != sorted(first)
    sampler.set_epoch(1)
    assert list(sampler) != first
    loader = torch.utils.data.DataLoader(range(30), batch_size=4, sampler=sampler)
    assert torch.cat(list(loader)).tolist() == list(sampler)
    with raises(ValueError, "expected one of pad, drop, keep"):
        hvd.DistributedSampler(3, uneven="none")


@ranks(3)
def test_a_sampler_goes_on_where_it_stopped_on_another_number_of_ranks():
    total, size = 20, hvd.size()
    sampler = hvd.DistributedSampler(total, uneven="keep")
    sampler.set_epoch(4)
    used = [part[:3] for part in everyones(sampler)]
    sampler.advance(3)
    state = sampler.state_dict()
    assert state == {"epoch": 4, "consumed": 3 * size}
    rest = hvd.DistributedSampler(total, uneven="keep")
    rest.load_state_dict(state)
    rest.set_epoch(4)  # the loop says it again
    left = everyones(rest)
    assert sorted(i for part in used + left for i in part) == list(range(total))
    # As one rank alone would go on:
    alone = hvd.DistributedSampler(total, uneven="keep")
    alone._place = lambda: (0, 1)
    alone.load_state_dict(state)
    assert sorted(alone) == sorted(i for part in left for i in part)
    rest.set_epoch(5)
    assert sum(map(len, everyones(rest))) == total


@ranks(1, 3)
def test_loaders_of_different_lengths_end_together():
    rank = hvd.rank()
    for shortest, length in ((3, 3 + rank), (4 - hvd.size(), 3 - rank)):
        batches = list(range(length))
        assert list(hvd.common_steps(batches)) == batches[:shortest]
        taken = []
        source = (i for i in batches if taken.append(i) is None)
        assert list(hvd.common_steps(source)) == batches[:shortest]
        if rank == 1:  # one rank knows its length, another does not
            source = batches
        else:
            source = iter(batches)
        assert list(hvd.common_steps(source)) == batches[:shortest]
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    steps = 0
    for x in hvd.common_steps([torch.ones(1, 2)] * (1 + rank)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        steps += 1
    assert steps == 1


class Share(torch.utils.data.IterableDataset):
    """A stream of which each rank takes its share, and each worker of the rank its own."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for sample in range(24):
            if sample % (hvd.size() * worker.num_workers) == hvd.rank() * worker.num_workers + worker.id:
                yield sample


@ranks(2)
def test_a_dataset_that_asks_for_the_rank_in_forked_workers():
    loader = torch.utils.data.DataLoader(Share(), num_workers=2, multiprocessing_context="fork")
    mine = torch.cat(list(loader))
    assert sorted(hvd.allgather(mine).tolist()) == list(range(24))
