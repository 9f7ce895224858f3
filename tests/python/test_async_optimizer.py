"""AsyncOptimizer: gradients that are late by a number of steps, bounded, counted, the same on all ranks."""

import copy
import gc
import os
import pathlib
import signal
import sys
import weakref

import rueda.torch as hvd
import torch
from digits import accuracy, digits, make_digits_model, share
from expect import eventually, raises
from relaxed_training import batch, check_alike, loss_of, train
from worlds import ranks, run_ranks

WORLD = "torch"


def make():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def backward(model, step, rank=None):
    loss = loss_of(model, step, rank)
    loss.backward()
    return loss


def wrap(model, kind=torch.optim.SGD, **options):
    settings = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.01}
    return hvd.AsyncOptimizer(kind(model.parameters(), **settings), model.named_parameters(), **options)


def delayed(steps, staleness, kind=torch.optim.SGD):
    """One process that does what all ranks do together, in the order of their steps."""
    model, late = make(), []
    settings = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.01}
    optimizer = kind(model.parameters(), **settings)

    def apply():
        for p, grad in zip(model.parameters(), late.pop(0)):
            p.grad = grad
        optimizer.step()

    for step in range(steps):
        sums = []
        for rank in range(hvd.size()):
            model.zero_grad()
            backward(model, step, rank)
            sums.append([p.grad.clone() for p in model.parameters()])
        late.append([torch.stack(grads).sum(0) / hvd.size() for grads in zip(*sums)])
        if len(late) > staleness:
            apply()
    while late:
        apply()
    return model


@ranks(1, 2, 3)
def test_without_staleness_it_is_the_synchronous_optimizer_bit_by_bit():
    for kind in (torch.optim.SGD, torch.optim.Adam):
        whole, model, quick = make(), make(), make()
        settings = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.01}
        plain = hvd.DistributedOptimizer(kind(whole.parameters(), **settings), whole.named_parameters())
        optimizer, eager = wrap(model, kind, staleness=0), wrap(quick, kind, staleness=0, eager=True)
        for each, its in ((whole, plain), (model, optimizer), (quick, eager)):
            train(each, its, 5)
        check_alike(model, whole)
        check_alike(quick, whole)
        assert dict(optimizer.staleness_seen) == {0: 5}
        optimizer.finish()
        check_alike(model, whole)
        loss = optimizer.step(lambda: backward(model, 9))
        assert torch.is_tensor(loss)


@ranks(2, 3)
def test_late_by_exactly_as_many_steps_as_wanted():
    for staleness in (1, 3):
        for kind in (torch.optim.SGD, torch.optim.Adam):
            model = make()
            optimizer = wrap(model, kind, staleness=staleness)
            train(model, optimizer, 6)
            hvd.check_replicas(model)  # also before the end
            assert dict(optimizer.staleness_seen) == {staleness: 6 - staleness}
            optimizer.finish()
            hvd.check_replicas(model)
            assert sum(optimizer.staleness_seen.values()) == 6
            for p, q in zip(model.parameters(), delayed(6, staleness, kind).parameters()):
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            again = make()
            other = wrap(again, kind, staleness=staleness)
            train(again, other, 6)
            other.finish()
            check_alike(again, model)


@ranks(1)
def test_who_is_alone_is_never_late():
    whole, model = make(), make()
    plain = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    optimizer = wrap(model, staleness=3)
    train(whole, plain, 4)
    train(model, optimizer, 4)
    check_alike(model, whole)
    optimizer.finish()
    check_alike(model, whole)


@ranks(2, 3)
def test_eager_ranks_apply_the_same_sums():
    model = make()
    optimizer = wrap(model, staleness=4, eager=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(8):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        scheduler.step()
    optimizer.finish()
    hvd.check_replicas(model)
    hvd.check_replicas(optimizer)
    seen = optimizer.staleness_seen
    assert sum(seen.values()) == 8 and max(seen) <= 4, seen


@ranks(2)
def test_sums_are_applied_with_the_options_that_they_were_computed_under():
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.AsyncOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), staleness=2)
    for lr in (1.0, 0.5, 0.25):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()  # every gradient is one
        optimizer.step()
    assert model.weight.tolist() == [[0.0, 0.0]] and optimizer.param_groups[0]["lr"] == 0.25
    optimizer.finish()
    assert model.weight.tolist() == [[-0.75, -0.75]]


class Counting(torch.optim.SGD):
    """One that keeps a count among its options."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


@ranks(2)
def test_options_that_the_optimizer_changes_itself_stay_as_it_left_them():
    model = make()
    plain = Counting(model.parameters(), lr=0.1)
    plain.param_groups[0]["count"] = 0
    optimizer = hvd.AsyncOptimizer(plain, staleness=2)
    train(model, optimizer, 7)
    assert optimizer.param_groups[0]["count"] == 5
    optimizer.finish()
    assert optimizer.param_groups[0]["count"] == 7


@ranks(2)
def test_a_slow_rank_is_waited_for_only_when_the_bound_is_reached():
    folder = pathlib.Path(sys.argv[1])
    for eager in (False, True):
        model = make()
        optimizer = wrap(model, staleness=2, eager=eager)
        ahead, came = folder / f"ahead.{eager}", folder / f"came.{eager}"
        for step in range(8):
            if hvd.rank() == 1 and step == 3:  # until rank 0 has ended step 4
                eventually(ahead.exists)
                came.touch()
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            if hvd.rank() == 0 and step == 4:
                assert not came.exists()
                ahead.touch()
            if hvd.rank() == 0 and step == 5:  # needs the third step's sum
                assert came.exists()
        optimizer.finish()
        hvd.check_replicas(model)
        assert max(optimizer.staleness_seen) <= 2


@ranks(2)
def test_passes_clipping_compression_and_parameters_without_a_gradient():
    whole, model = make(), make()
    plain = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    plain = hvd.DistributedOptimizer(plain, whole.named_parameters(), backward_passes_per_step=2)
    optimizer = wrap(model, staleness=1, backward_passes_per_step=2)
    # The second gradient is computed with the parameters of before the first step, which the other takes late.
    whole_at_start = {name: value.clone() for name, value in whole.state_dict().items()}
    norms = []
    for step in range(2):
        plain.zero_grad()
        now = {name: value.clone() for name, value in whole.state_dict().items()}
        whole.load_state_dict(whole_at_start)
        backward(whole, 2 * step)
        backward(whole, 2 * step + 1)
        plain.synchronize()
        whole.load_state_dict(now)
        norms.append(torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1))
        with plain.skip_synchronize():
            plain.step()
    found = []
    for step in range(3):
        optimizer.zero_grad()
        backward(model, 2 * step)
        backward(model, 2 * step + 1)
        found.append(optimizer.clip_grad_norm_(0.1))
        optimizer.step()
    assert found[0] == 0
    torch.testing.assert_close(torch.stack(found[1:]), torch.stack(norms))
    check_alike(model, whole)

    for compression in (hvd.Compression.fp16, hvd.Compression.int8()):
        model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Linear(300, 3))
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = wrap(model, staleness=2, compression=compression)
        for step in range(5):
            optimizer.zero_grad()
            if step == 2 and hvd.rank() == 1:
                model[0](batch(step)).square().mean().backward()
            else:
                backward(model, step)
            optimizer.step()
        optimizer.finish()
        hvd.check_replicas(model)


@ranks(2)
def test_a_checkpoint_has_what_is_under_way():
    whole, model = make(), make()
    plain, optimizer = wrap(whole, staleness=2), wrap(model, staleness=2)
    for each, its in ((whole, plain), (model, optimizer)):
        train(each, its, 4)
    state, values = copy.deepcopy(optimizer.state_dict()), {n: v.clone() for n, v in model.state_dict().items()}
    train(model, optimizer, 1, first=77)  # the checkpoint is not touched by what comes after it
    model, optimizer = make(), None
    optimizer = wrap(model, staleness=2)
    train(model, optimizer, 3)
    model.load_state_dict(values)
    optimizer.load_state_dict(state)
    for each, its in ((whole, plain), (model, optimizer)):
        train(each, its, 3, first=4)
        its.finish()
    check_alike(model, whole)
    assert optimizer.staleness_seen == plain.staleness_seen

    torch.optim.SGD(make().parameters(), lr=1.0, momentum=0.9).load_state_dict(state)  # a plain one takes it
    short = wrap(make(), staleness=1)
    with raises(ValueError, "staleness=2"):
        short.load_state_dict(state)
    assert not short.state and state["state"]  # it is refused before anything is taken
    with raises(ValueError, "hvd.AsyncOptimizer", "hvd.LocalSGD"):
        hvd.LocalSGD(torch.optim.SGD(make().parameters(), lr=1.0)).load_state_dict(state)
    of_a_sharded_one = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9).state_dict()
    optimizer.load_state_dict({**of_a_sharded_one, "rueda": {"roundings": 3}})
    train(model, optimizer, 3)
    optimizer.finish()
    hvd.check_replicas(model)


@ranks(2)
def test_what_does_not_go_with_it_is_refused_by_name():
    model = make()
    with raises(ValueError, "staleness=-1"):
        wrap(model, staleness=-1)
    with raises(ValueError, "op=Adasum, shard="):
        hvd.AsyncOptimizer(hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shard="state"))
    model = make()
    with raises(ValueError, "eager=True", "topk"):
        wrap(model, eager=True, compression=hvd.Compression.topk(0.1))
    optimizer = wrap(model, staleness=1)
    with raises(NotImplementedError, "closure"):
        optimizer.step(lambda: None)
    with raises(ValueError, "AsyncOptimizer", "hook"):
        hvd.register_comm_hook(optimizer, lambda state, bucket: None)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch(0)).sum()).backward()
    with raises(NotImplementedError, "GradScaler", "bfloat16"):
        scaler.step(optimizer)
    optimizer.step()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    eager = hvd.AsyncOptimizer(plain, eager=True)
    with raises(NotImplementedError, "eager=True"):
        eager.clip_grad_norm_(1.0)
    with raises(ValueError, "eager=True"):
        eager.check_replicas(every=1)
    with raises(RuntimeError, "hvd.AsyncOptimizer"):
        plain.step()
    backward(model, 0)
    with raises(RuntimeError, "between backward() and step()"):
        eager.finish()
    eager.step()
    eager.finish()


@ranks(2)
def test_a_gradient_that_is_changed_while_it_travels_is_named():
    model = make()
    optimizer = wrap(model, staleness=1)
    backward(model, 0)
    model[0].weight.grad.mul_(2)
    optimizer.step()
    backward(model, 1)
    with raises(RuntimeError, "0.weight"):
        optimizer.step()


@ranks(2)
def test_nothing_is_kept_alive():
    model = make()
    optimizer = wrap(model, staleness=2)
    train(model, optimizer, 4)
    kept = [weakref.ref(optimizer), *map(weakref.ref, model.parameters())]
    del model, optimizer
    gc.collect()
    assert not any(each() is not None for each in kept)
    hvd.barrier()


@ranks(2)
def test_other_process_sets_go_on_by_themselves():
    first = hvd.add_process_set([0])
    model = make()
    optimizer = wrap(model, staleness=2, process_set=first)
    train(model, optimizer, 3)
    assert dict(optimizer.staleness_seen) == {0: 3}
    hvd.remove_process_set(first)


@ranks(2)
def test_digits_are_learnt_with_late_gradients():
    for options in ({"staleness": 2}, {"staleness": 3, "eager": True}):
        x, y, test_x, test_y = digits()
        model = make_digits_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        optimizer = hvd.AsyncOptimizer(optimizer, model.named_parameters(), **options)
        for epoch in range(12):
            for mine in share(len(y), 64, epoch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
                optimizer.step()
        optimizer.finish()
        hvd.check_replicas(model)
        found = accuracy(model, test_x, test_y)
        assert found > 0.85, (options, found)


def a_rank_is_killed():
    hvd.init()
    rank, model = hvd.rank(), make()
    optimizer = wrap(model, staleness=2)
    try:
        for step in range(100):
            optimizer.zero_grad()
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            backward(model, step)
            optimizer.step()
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        good = all(bool(torch.isfinite(p).all()) for p in model.parameters())
        return {"rank": rank, "step": step, "good": good}


def test_a_rank_that_dies_is_an_error_when_its_gradient_is_due():
    outcome = run_ranks(3, a_rank_is_killed, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        result = report["result"]  # two steps behind who dies, at most, or two ahead
        assert result["good"] and 2 <= result["step"] <= 7, report
