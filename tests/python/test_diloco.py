"""DiLoCo: ranks step by themselves, and an outer optimizer brings them together."""

import copy
import os
import signal

import rueda.torch as hvd
import torch
from digits import accuracy, digits, make_digits_model, share
from expect import raises
from rueda.torch.relaxed import _fragments
from relaxed_training import batch, check_alike, check_close, differs, loss_of, train
from worlds import ranks, run_ranks

WORLD = "torch"


def make():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def wrap(model, **options):
    return hvd.DiLoCo(adam(model), model.named_parameters(), **options)


def alone(steps, every, pieces=1, delay=0, mix=0.0):
    """What all ranks do, in one process, as the papers write it."""
    models = [make() for _ in range(hvd.size())]
    inner = [adam(model) for model in models]
    theta = [p.detach().clone() for p in make().parameters()]
    outer = torch.optim.SGD(theta, lr=0.7, momentum=0.9, nesterov=True)
    parts = _fragments.cut([p.numel() for p in theta], pieces)
    under_way = {}  # step of its end: (numbers, means)
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, inner)):
            optimizer.zero_grad()
            loss_of(model, step - 1, rank).backward()
            optimizer.step()
        values = [[p.detach() for p in model.parameters()] for model in models]
        for index, part in enumerate(parts):
            if _fragments.is_due(step, index, len(parts), every):
                means = [torch.stack([theta[n] - mine[n] for mine in values]).mean(0) for n in part]
                under_way.setdefault(step + delay, []).append((part, means))
            for numbers, means in [each for each in under_way.get(step, []) if each[0] is part]:
                for n, mean in zip(numbers, means):
                    theta[n].grad = mean
                outer.step()
                for n in numbers:
                    theta[n].grad = None
                    for mine in values:
                        mine[n].copy_(mix * mine[n] + (1 - mix) * theta[n])
    return models[hvd.rank()]


def test_fragments_are_neighbours_of_about_the_same_size():
    for counts in ([5], [1, 1, 1, 1], [100, 1, 1, 1], [3, 50, 4, 60, 1, 9, 20], [0, 0, 7], []):
        for pieces in range(1, 6):
            parts = _fragments.cut(counts, pieces)
            assert [n for part in parts for n in part] == list(range(len(counts)))
            assert all(parts) and len(parts) <= pieces
    assert _fragments.cut([10] * 6, 3) == [[0, 1], [2, 3], [4, 5]]
    for every, count in ((6, 1), (6, 3), (7, 3), (5, 5)):
        for fragment in range(count):
            due = [n for n in range(1, 4 * every + 1) if _fragments.is_due(n, fragment, count, every)]
            assert len(due) == 4 and all(b - a == every for a, b in zip(due, due[1:]))


@ranks(1, 2, 3)
def test_outer_steps_are_the_papers():
    model = make()
    optimizer = wrap(model, every=3)
    for step in range(10):
        train(model, optimizer, 1, first=step)
        assert optimizer.local_steps == (step + 1) % 3
        assert differs(model) == (optimizer.local_steps > 0 and hvd.size() > 1)
    check_close(model, alone(10, 3))
    optimizer.finish()
    assert optimizer.local_steps == 0
    hvd.check_replicas(model)
    again = make()
    other = wrap(again, every=3)
    train(again, other, 10)
    other.finish()
    check_alike(again, model)


@ranks(2)
def test_an_outer_step_of_one_is_local_sgd():
    whole, model = make(), make()
    plain = hvd.LocalSGD(adam(whole), whole.named_parameters(), every=2)
    optimizer = wrap(model, every=2, outer=lambda theta: torch.optim.SGD(theta, lr=1.0))
    for each, its in ((whole, plain), (model, optimizer)):
        train(each, its, 5)
        its.finish()
    check_close(model, whole)


@ranks(1, 2)
def test_fragments_and_means_that_are_under_way():
    for options in (
        {"fragments": 3},
        {"fragments": 2, "delay": 2},
        {"delay": 1, "mix": 0.25},
        {"fragments": 3, "delay": 1, "mix": 0.0},
    ):
        model = make()
        optimizer = wrap(model, every=6, **options)
        train(model, optimizer, 17)
        mix = options.get("mix", 0.5 if "delay" in options else 0.0)
        check_close(model, alone(17, 6, options.get("fragments", 1), options.get("delay", 0), mix))
        assert optimizer.local_steps > 0
        optimizer.finish()
        assert optimizer.local_steps == 0
        hvd.check_replicas(model)
        train(model, optimizer, 8, first=30)  # goes on
        optimizer.finish()
        hvd.check_replicas(model)


@ranks(2)
def test_a_broadcast_after_wrapping_and_synchronous_steps_come_before_the_outer_parameters():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(6, 3)
    optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), every=2, begin=2)
    hvd.broadcast_parameters(model.state_dict(), 0)
    train(model, optimizer, 2)
    hvd.check_replicas(model)
    begun = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 1, first=2)
    for theta, p in zip(optimizer.outer.param_groups[0]["params"], begun):
        assert torch.equal(theta, p)
    train(model, optimizer, 1, first=3)
    hvd.check_replicas(model)


@ranks(2)
def test_what_travels_may_be_compressed():
    for compression in (hvd.Compression.bf16, hvd.Compression.int8(), hvd.Compression.topk(0.2)):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.Linear(300, 3))
        optimizer = wrap(model, every=2, fragments=2, compression=compression)
        train(model, optimizer, 7)
        optimizer.finish()
        hvd.check_replicas(model)


@ranks(2)
def test_after_a_wait_that_was_interrupted_local_work_stays():
    class Interrupted:
        handles = ()

        def wait(self):
            raise KeyboardInterrupt

    whole, model = make(), make()
    plain, optimizer = adam(whole), wrap(model, every=2, delay=1)
    train(whole, plain, 4)
    train(model, optimizer, 2)
    under_way = optimizer._fragments[0].under_way
    under_way.give_up(60)
    under_way._parts = [Interrupted()]
    with raises(KeyboardInterrupt):
        train(model, optimizer, 1, first=2)
    with raises(RuntimeError, "was interrupted"):
        under_way.wait()
    optimizer._settle_all()
    train(model, optimizer, 1, first=3)  # begins another mean
    check_alike(model, whole)
    optimizer.finish()
    hvd.check_replicas(model)


@ranks(2)
def test_a_checkpoint_has_both_levels():
    for options in ({}, {"fragments": 2, "delay": 2}):
        whole, model = make(), make()
        plain, optimizer = wrap(whole, every=4, **options), wrap(model, every=4, **options)
        train(whole, plain, 16)
        train(model, optimizer, 5)
        state, values = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        model = make()
        optimizer = wrap(model, every=4, **options)
        train(model, optimizer, 6)
        model.load_state_dict(values)
        optimizer.load_state_dict(state)
        train(model, optimizer, 11, first=5)
        check_alike(model, whole)
    adam(make()).load_state_dict(state)  # a plain one takes the inner one's
    other = wrap(make(), every=4)
    with raises(ValueError, "fragments=2, not 1"):
        other.load_state_dict(state)
    assert not other.state and state["state"]  # it is refused before anything is taken
    with raises(ValueError, "hvd.DiLoCo", "hvd.LocalSGD"):
        hvd.LocalSGD(adam(make())).load_state_dict(state)
    optimizer.load_state_dict(adam(model).state_dict())
    assert optimizer.local_steps == 0 and not optimizer.outer.state
    hvd.broadcast_parameters(model.state_dict(), 0)
    train(model, optimizer, 4)
    optimizer.finish()
    hvd.check_replicas(model)


@ranks(2)
def test_parameters_that_come_later_and_those_that_are_frozen():
    model, more = make(), torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(more.state_dict(), 0)
    optimizer = wrap(model, every=2)
    train(model, optimizer, 3)
    model[0].requires_grad_(False)  # differs by rank now
    optimizer.add_param_group({"params": more.parameters()})
    optimizer.zero_grad()
    more(model(batch(1))).sum().backward()
    optimizer.step()
    hvd.check_replicas(model)
    hvd.check_replicas(more)
    assert len(optimizer.outer.param_groups) == 2


@ranks(1, 2)
def test_mistakes_are_named():
    for options, words in (
        ({"every": 0}, "every=0"),
        ({"fragments": 0}, "fragments=0"),
        ({"every": 2, "fragments": 3}, "fragments=3"),
        ({"every": 2, "delay": 2}, "delay=2"),
        ({"mix": 1.0}, "mix=1.0"),
        ({"begin": -1}, "begin=-1"),
    ):
        with raises(ValueError, words):
            wrap(make(), **options)
    with raises(ValueError, "hvd.DiLoCo takes the plain optimizer"):
        hvd.DiLoCo(wrap(make()))
    model = make()
    plain = adam(model)
    optimizer = hvd.DiLoCo(plain)
    with raises(RuntimeError, "hvd.DiLoCo"):
        plain.step()
    with raises(ValueError, "DiLoCo", "hook"):
        hvd.register_comm_hook(optimizer, lambda state, bucket: None)


@ranks(2)
def test_digits_are_learnt_with_a_twentieth_of_the_communication():
    x, y, test_x, test_y = digits()
    model = make_digits_model()
    optimizer = hvd.DiLoCo(adam(model), model.named_parameters(), every=20)
    for epoch in range(12):
        for mine in share(len(y), 64, epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
    optimizer.finish()
    hvd.check_replicas(model)
    found = accuracy(model, test_x, test_y)
    assert found > 0.85, found


def a_rank_is_killed():
    hvd.init()
    rank, model = hvd.rank(), make()
    optimizer = wrap(model, every=4)
    try:
        for step in range(100):
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            train(model, optimizer, 1, first=step)
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        good = all(bool(torch.isfinite(p).all()) for p in model.parameters())
        return {"rank": rank, "step": step, "good": good}


def test_a_rank_that_dies_is_an_error_at_the_next_outer_step():
    outcome = run_ranks(3, a_rank_is_killed, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        assert report["result"]["step"] in (3, 7) and report["result"]["good"], report
