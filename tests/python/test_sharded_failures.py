"""What a lost rank, and a job that ends, leave of a sharded optimizer."""

import os
import signal

import pytest
import rueda.torch as hvd
import torch
from worlds import run_ranks

SIZE = 3


def _train(killed_when):
    hvd.init()
    rank = hvd.rank()
    model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 300))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard="gradients")
    x = torch.randn(2, 300)
    try:
        for step in range(100):
            optimizer.zero_grad()
            if step == 5 and hvd.rank() == 1 and killed_when == "forward":
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model(x).square().mean()
            if step == 5 and hvd.rank() == 1 and killed_when == "update":
                optimizer.register_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            loss.backward()
            optimizer.step()
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        good = all(bool(torch.isfinite(p).all()) for p in model.parameters())
        return {"rank": rank, "step": step, "good": good}


def killed_in_forward():
    return _train("forward")


def killed_between_reduction_and_gathering():
    return _train("update")


@pytest.mark.parametrize("function", [killed_in_forward, killed_between_reduction_and_gathering], ids=lambda f: f.__name__)
def test_a_rank_that_dies_is_named_and_memory_stays_readable(function):
    outcome = run_ranks(SIZE, function, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        result = report["result"]
        assert result["rank"] == rank and result["good"], report
        assert result["step"] in (4, 5), report  # who dies may have ended a step that others have not


def two_jobs():
    for _ in range(2):
        hvd.init()
        rank = hvd.rank()
        model = torch.nn.Linear(30, 20)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), shard="state")
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        hvd.shutdown()
        assert bool(torch.isfinite(model.weight).all())  # outlives the job
        with pytest.raises(Exception, match="init|shut down|left"):
            optimizer.zero_grad()
            model(torch.ones(2, 30)).sum().backward()
            optimizer.step()
    return {"rank": rank}


def test_an_optimizer_of_an_ended_job_says_so():
    outcome = run_ranks(2, two_jobs, manual=True)
    assert outcome.code == 0, outcome.output
    assert [list(r.values())[0]["result"]["rank"] for r in outcome.reports] == [0, 1], outcome.reports
