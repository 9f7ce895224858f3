"""What is wrong with a model whose parameters are sharded is told by name, and never a hang."""

import os
import signal

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from test_sharded_modules import Block, Model, tokens
from test_sharded_optimizer import Model as Odd
from test_sharded_optimizer import train
from test_sharded_optimizer import wrap as wrap_plain
from test_sharded_parameters import wrap
from worlds import ranks, run_ranks

WORLD = "torch"


@ranks(2)
def test_wrong_arguments_are_refused():
    model = Odd()
    with raises(ValueError, 'shard="parameters"', "module=model"):
        wrap_plain(model, shard="parameters")
    with raises(ValueError, "share='host'", 'shard="gradients", share="host"'):
        wrap(model, share="host")
    with raises(ValueError, "module= is for shard=;"):
        wrap_plain(model, module=model)
    for options in ({"units": 0}, {"units": 0, "shard": "state"}, {"init": print, "shard": "gradients"}):
        with raises(ValueError, 'units= and init= are for shard="parameters"'):
            wrap_plain(model, **options)
    with raises(ValueError, "LBFGS cannot be sharded"):
        wrap(model, torch.optim.LBFGS)
    with raises(ValueError, "compression is not for shard="):
        wrap(model, compression=hvd.Compression.fp16)
    stray = torch.nn.Parameter(torch.ones(3))
    with raises(ValueError, "of no module of module= are", "noname.0.0"):
        hvd.DistributedOptimizer(torch.optim.SGD([stray], lr=0.1), shard="parameters", module=model)
    whole = torch.nn.Parameter(torch.arange(3.0))
    whole.requires_grad_(False)
    optimizer = wrap(model)
    with raises(ValueError, 'add_param_group is not for shard="parameters"'):
        optimizer.add_param_group({"params": [stray]})
    train(model, optimizer, 1)
    with torch.device("meta"):
        meta = Odd()
    with raises(ValueError, "on meta"):
        wrap_plain(meta, shard="gradients")


@ranks(2)
def test_changes_from_outside_are_named():
    def replace(model):
        model.last.weight.data = torch.ones(3, 13)

    def convert(model):
        model.first.double()

    def another(model):
        model.last.bias = torch.nn.Parameter(torch.ones(3))

    def unname(model):
        model.frozen.weight.data = torch.ones(13, 13)

    def unfreeze(model):
        model.frozen.requires_grad_(True)

    def freeze(model):
        model.first.bias.requires_grad_(False)

    for change, words in (
        (replace, "replaced (last.weight)"),
        (convert, "replaced (first.weight, first.bias)"),
        (another, "replaced (last.bias)"),
        (unname, "replaced (frozen.weight)"),
        (unfreeze, "requires_grad was changed after the optimizer was sharded (frozen.weight, frozen.bias)"),
        (freeze, "requires_grad was changed after the optimizer was sharded (first.bias)"),
    ):
        model = Odd()
        optimizer = wrap(model)
        train(model, optimizer, 1)
        change(model)
        with raises(RuntimeError, words):
            train(model, optimizer, 1)


def rank_0_alone(what):
    hvd.init()
    rank, model = hvd.rank(), Model()
    optimizer = wrap(model, units=[Block])
    try:
        for step in range(3):
            optimizer.zero_grad()
            if step == 1 and rank == 0:
                what(model, optimizer)
            model(tokens(step)).sum().backward()
            optimizer.step()
    except Exception as error:
        return {"rank": rank, "error": str(error)}
    return {"rank": rank, "error": None}


def saves_alone():
    return rank_0_alone(lambda model, optimizer: model.state_dict())


def evaluates_alone():
    return rank_0_alone(lambda model, optimizer: model.blocks[3](torch.ones(1, 12)))


def gathers_alone():
    return rank_0_alone(lambda model, optimizer: hvd.gathered(model.blocks[2]).__enter__())


@pytest.mark.parametrize("function", [saves_alone, evaluates_alone, gathers_alone], ids=lambda f: f.__name__)
def test_what_one_rank_does_alone_is_an_error_on_all(function):
    outcome = run_ranks(2, function, manual=True)
    results = [next(iter(report.values()))["result"] for report in outcome.reports]
    assert all(result["error"] for result in results), results
    assert any("Mismatched" in result["error"] and "all ranks must run the same modules" in result["error"] for result in results), results


def _train(killed_when):
    hvd.init()
    rank, model = hvd.rank(), Model()
    optimizer = wrap(model, torch.optim.Adam, units=[Block])

    def die(*_):
        if step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    if killed_when == "forward":
        model.blocks[2].register_forward_hook(die)
    if killed_when == "backward":
        model.blocks[2].register_full_backward_hook(die)
    if killed_when == "update":
        optimizer.register_step_pre_hook(die)
    try:
        for step in range(100):
            optimizer.zero_grad()
            model(tokens(step)).square().mean().backward()
            optimizer.step()
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        return {"rank": rank, "step": step, "kind": type(error).__name__}


def killed_in_forward():
    return _train("forward")


def killed_in_backward():
    return _train("backward")


def killed_in_update():
    return _train("update")


@pytest.mark.parametrize("function", [killed_in_forward, killed_in_backward, killed_in_update], ids=lambda f: f.__name__)
def test_a_rank_that_dies_is_named(function):
    outcome = run_ranks(3, function, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        result = report["result"]
        assert result["rank"] == rank and result["kind"] == "RankLostError" and result["step"] in (3, 4), report


def two_jobs():
    for _ in range(2):
        hvd.init()
        rank, model = hvd.rank(), Model()
        optimizer = wrap(model, units=[Block])
        model(tokens(0)).sum().backward()
        optimizer.step()
        hvd.shutdown()
        with pytest.raises(Exception, match="init|shut down|left"):
            optimizer.zero_grad()
            model(tokens(1)).sum().backward()
            optimizer.step()
    return {"rank": rank}


def test_a_model_of_an_ended_job_says_so():
    outcome = run_ranks(2, two_jobs, manual=True)
    assert outcome.code == 0, outcome.output
    assert [list(r.values())[0]["result"]["rank"] for r in outcome.reports] == [0, 1], outcome.reports
