"""One copy of the parameters for all ranks of a host: the same numbers, in memory that is there once."""

import gc
import os
import signal

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from test_sharded_optimizer import (
    STAGES,
    Model,
    backward,
    batch,
    check_alike,
    check_states,
    train,
    wrap,
)
from worlds import ranks, run_ranks

WORLD = "torch"


@ranks(1, 2, 3, 4)
def test_the_same_steps_as_with_a_copy_each():
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        whole = Model()
        plain = wrap(whole, kind)
        train(whole, plain, 3)
        for stage in STAGES:
            model = Model()
            optimizer = wrap(model, kind, shard=stage, share="host")
            train(model, optimizer, 3)
            check_alike(model, whole)
            check_states(optimizer.state_dict(), plain.state_dict())


@ranks(2, 3)
def test_clipping_closures_and_state():
    for stage in STAGES:
        whole, model = Model(), Model()
        for each, optimizer in ((whole, wrap(whole)), (model, wrap(model, shard=stage, share="host"))):

            def closure(each=each, optimizer=optimizer):
                optimizer.zero_grad()
                return backward(each, 0)

            optimizer.step(closure)
            optimizer.zero_grad()
            backward(each, 1)
            optimizer.clip_grad_norm_(0.05)
            optimizer.step()
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
            train(each, optimizer, 1, first=2)
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(2, 3)
def test_what_one_rank_writes_is_everybodys():
    model = Model()
    if hvd.rank() != 0:
        with torch.no_grad():
            model.first.bias.fill_(-1.0)
    optimizer = wrap(model, shard="state", share="host")
    assert torch.equal(model.first.bias, Model().first.bias)  # the first rank's
    hvd.barrier()
    if hvd.rank() == 1:
        with torch.no_grad():
            model.first.bias.fill_(7.0)
    hvd.barrier()
    assert model.first.bias.tolist() == [7.0] * 13
    hvd.barrier()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, 2)
    hvd.check_replicas(model)


@ranks(2)
def test_data_loaders_fork_beside_it():
    model = Model()
    optimizer = wrap(model, shard="gradients", share="host")
    data = [batch(hvd.rank(), step)[0] for step in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    hvd.check_replicas(model)


@ranks(2)
def test_wrong_arguments_are_refused():
    with raises(ValueError, "share='rack'"):
        wrap(Model(), shard="state", share="rack")
    with raises(ValueError, 'share= is for shard="state"'):
        wrap(Model(), share="host")


def again_and_again():
    hvd.init()
    rank = hvd.rank()
    outlived = []
    for turn in range(12):
        model = torch.nn.Linear(700, 700)
        optimizer = wrap(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), shard="gradients", share="host")
        optimizer.zero_grad()
        model(torch.ones(1, 700)).sum().backward()
        optimizer.step()
        if turn == 5:
            outlived.append(model.bias)
        elif turn % 2 == rank:  # one lets go of it before the other
            del model, optimizer
            gc.collect()
            hvd.barrier()
            continue
        hvd.barrier()
        del model, optimizer
        gc.collect()
    hvd.shutdown()
    assert torch.isfinite(outlived[0]).all()
    return {"rank": rank}


def test_memory_comes_back_when_no_rank_needs_it():
    outcome = run_ranks(2, again_and_again, manual=True, env={"RUEDA_HEAP_BYTES": str(12 << 20)})  # of 2 MB each
    assert outcome.code == 0, (outcome.output, outcome.reports)


def too_large():
    hvd.init()
    model = torch.nn.Linear(3000, 1000)
    with pytest.raises(MemoryError, match="RUEDA_HEAP_BYTES"):
        wrap(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), shard="state", share="host")
    rank = hvd.rank()
    hvd.shutdown()
    return {"rank": rank}


def test_too_little_memory_is_an_error_on_all_ranks():
    outcome = run_ranks(2, too_large, manual=True, env={"RUEDA_HEAP_BYTES": str(4 << 20)})
    assert outcome.code == 0, (outcome.output, outcome.reports)


def killed_in_update():
    hvd.init()
    rank, model = hvd.rank(), Model()
    optimizer = wrap(model, torch.optim.Adam, shard="state", share="host")
    if rank == 0:  # whose memory it is
        optimizer.register_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(hvd.HorovodInternalError) as raised:
        train(model, optimizer, 1)
    assert raised.value.rank == 0
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())  # still there
    return {"rank": rank}


def test_the_memory_outlives_its_owner():
    outcome = run_ranks(3, killed_in_update, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    assert [len(report) for report in outcome.reports[1:]] == [1, 1], outcome.reports
    assert all("result" in line for report in outcome.reports[1:] for line in report.values()), outcome.reports
