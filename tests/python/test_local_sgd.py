"""LocalSGD: ranks step by themselves and average their parameters every few steps."""

import copy
import os
import signal

import rueda.torch as hvd
import torch
from digits import accuracy, digits, make_digits_model, share
from expect import raises
from relaxed_training import batch, check_alike, check_close, differs, loss_of, train
from worlds import ranks, run_ranks

WORLD = "torch"


def make():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def alone(steps, every, kind=sgd):
    """What all ranks do, in one process."""
    models = [make() for _ in range(hvd.size())]
    optimizers = [kind(model) for model in models]
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
        if (step + 1) % every == 0:
            with torch.no_grad():
                for same in zip(*(model.parameters() for model in models)):
                    mean = torch.stack([p.detach() for p in same]).mean(0)
                    for p in same:
                        p.copy_(mean)
    return models[hvd.rank()]


@ranks(1, 2, 3)
def test_every_step_of_plain_sgd_is_gradient_averaging():
    whole, model = make(), make()
    plain = hvd.DistributedOptimizer(sgd(whole), whole.named_parameters())
    optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=1)
    for each, its in ((whole, plain), (model, optimizer)):
        train(each, its, 4)
    check_close(model, whole)
    hvd.check_replicas(model)


@ranks(1, 2, 3)
def test_ranks_are_apart_between_averages_and_together_after_them():
    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    for kind in (sgd, adam):
        model = make()
        optimizer = hvd.LocalSGD(kind(model), model.named_parameters(), every=3)
        for step in range(7):
            train(model, optimizer, 1, first=step)
            assert optimizer.local_steps == (step + 1) % 3
            assert differs(model) == (optimizer.local_steps > 0 and hvd.size() > 1)
        check_close(model, alone(7, 3, kind))
        optimizer.finish()
        assert optimizer.local_steps == 0
        hvd.check_replicas(model)
        again = make()
        other = hvd.LocalSGD(kind(again), again.named_parameters(), every=3)
        train(again, other, 7)
        other.finish()
        check_alike(again, model)


@ranks(2)
def test_the_first_steps_average_gradients():
    whole, model = make(), make()
    plain = hvd.DistributedOptimizer(sgd(whole, momentum=0.9), whole.named_parameters())
    optimizer = hvd.LocalSGD(sgd(model, momentum=0.9), model.named_parameters(), every=2, begin=3)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (plain, optimizer)]
    for step in range(3):
        train(whole, plain, 1, first=step)
        train(model, optimizer, 1, first=step)
        for scheduler in schedulers:
            scheduler.step()
        assert optimizer.local_steps == 0
    check_alike(model, whole)
    assert optimizer.param_groups[0]["lr"] == 0.05
    for step in range(3, 7):
        train(model, optimizer, 1, first=step)
        assert optimizer.local_steps == (step - 2) % 2
        assert differs(model) == bool(optimizer.local_steps)


@ranks(2)
def test_state_and_buffers_are_averaged_where_wanted():
    def run(**options):
        model = make()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if options.pop("with_buffers", False):
            options["buffers"] = model.named_buffers()
        optimizer = hvd.LocalSGD(optimizer, model.named_parameters(), every=2, **options)
        train(model, optimizer, 4)
        moments = {str(i): state["exp_avg"] for i, state in enumerate(optimizer.state.values())}
        return moments, dict(model.named_buffers())

    moments, buffers = run()
    assert differs(moments) and differs(buffers)
    moments, buffers = run(average_state=True, with_buffers=True)
    assert not differs(moments) and not differs(buffers)

    model = make()  # one rank has not used a layer, so has no state for it
    optimizer = hvd.LocalSGD(torch.optim.Adam(model.parameters()), average_state=True, every=1)
    part = model if hvd.rank() == 0 else model[:2]
    part(batch(0)).sum().backward()
    optimizer.step()
    hvd.check_replicas(model)
    assert len(optimizer.state) == (6 if hvd.rank() == 0 else 4)


@ranks(2)
def test_a_scaler_that_leaves_out_a_step_on_one_rank_does_not_part_the_ranks():
    model, reference = make(), make()
    optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=2)
    plain = sgd(reference)
    for each, its in ((model, optimizer), (reference, plain)):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(6):
            its.zero_grad()
            loss = loss_of(each, step)
            if step == 2 and hvd.rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(its)
                torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            scaler.step(its)
            scaler.update()
            if its is plain and step % 2:  # what the other does
                with torch.no_grad():
                    for p in each.parameters():
                        p.copy_(hvd.allreduce(p.detach()))
        assert scaler.get_scale() == (128.0 if hvd.rank() == 1 else 256.0)
    check_close(model, reference)
    hvd.check_replicas(model)
    assert optimizer.local_steps == 0


@ranks(3)
def test_two_levels():
    left, right = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
    near = left if hvd.rank() < 2 else right
    model = make()
    levels = [(6, hvd.global_process_set), (2, near)]
    optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=levels)
    for step in range(6):
        train(model, optimizer, 1, first=step)
        if step == 3:
            first = model[1].weight.detach().reshape(1, -1)
            rows = hvd.allgather(first)
            assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert optimizer.local_steps == 0 and not differs(model)
    with raises(ValueError, "6 steps are no multiple of 4"):
        hvd.LocalSGD(sgd(make()), every=[(6, hvd.global_process_set), (4, near)])
    with raises(ValueError, "all ranks of that of 2"):
        hvd.LocalSGD(sgd(make()), every=[(4, left), (2, hvd.global_process_set)])
    for each in (left, right):
        hvd.remove_process_set(each)


@ranks(2)
def test_a_checkpoint_knows_how_many_steps_were_taken():
    whole, model = make(), make()
    plain = hvd.LocalSGD(sgd(whole, momentum=0.9), whole.named_parameters(), every=4, begin=2)
    optimizer = hvd.LocalSGD(sgd(model, momentum=0.9), model.named_parameters(), every=4, begin=2)
    train(whole, plain, 9)
    for taken in (1, 3):  # in the first steps, and in the middle of local ones
        model.load_state_dict(make().state_dict())
        optimizer.load_state_dict(sgd(make(), momentum=0.9).state_dict())  # a plain one's: begins anew
        optimizer.param_groups[0]["momentum"] = 0.9
        train(model, optimizer, taken)
        state, values = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        train(model, optimizer, 4)
        model.load_state_dict(values)
        optimizer.load_state_dict(state)
        assert optimizer.local_steps == max(0, taken - 2)
        train(model, optimizer, 9 - taken, first=taken)
        check_alike(model, whole)
    sgd(make(), momentum=0.9).load_state_dict(state)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.local_steps == 3


@ranks(2)
def test_frozen_parameters_and_those_that_come_later():
    model, more = make(), torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(more.state_dict(), 0)
    optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=2)
    train(model, optimizer, 1)
    model[1].requires_grad_(False)  # differs by rank now
    optimizer.add_param_group({"params": more.parameters()})
    optimizer.zero_grad()
    more(model(batch(1))).sum().backward()
    optimizer.step()
    hvd.check_replicas(model)
    hvd.check_replicas(more)


@ranks(2)
def test_closures_and_other_wrappers():
    model = make()
    optimizer = hvd.LocalSGD(torch.optim.LBFGS(model.parameters(), max_iter=2), every=2)
    for step in range(2):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        assert torch.is_tensor(optimizer.step(closure))
    hvd.check_replicas(model)

    model = make()
    plain = sgd(model)
    local = hvd.LocalSGD(plain, model.named_parameters(), every=2, begin=1)
    assert type(copy.deepcopy(local)) is torch.optim.SGD
    with raises(RuntimeError, "hvd.LocalSGD"):
        plain.step()
    with raises(ValueError, "LocalSGD", "hook"):
        hvd.register_comm_hook(local, lambda state, bucket: None)
    with raises(ValueError, "every=5", "LocalSGD"):
        local.check_replicas(every=5)
    for every in (0, 1.5, []):
        with raises(ValueError, "every"):
            hvd.LocalSGD(sgd(make()), every=every)
    with raises(ValueError, "begin"):
        hvd.LocalSGD(sgd(make()), begin=-1)
    for other in (hvd.DistributedOptimizer(sgd(make()), op=hvd.Adasum), local):
        with raises(ValueError, "hvd.LocalSGD takes the plain optimizer", "op=Adasum"):
            hvd.LocalSGD(other)
    train(model, local, 2)
    hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    with raises(RuntimeError, "later DistributedOptimizer"):
        train(model, local, 1)


@ranks(2)
def test_digits_are_learnt_with_a_tenth_of_the_communication():
    x, y, test_x, test_y = digits()
    model = make_digits_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = hvd.LocalSGD(optimizer, model.named_parameters(), every=10)
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
    optimizer = hvd.LocalSGD(sgd(model), model.named_parameters(), every=4)
    before = None
    try:
        for step in range(100):
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss_of(model, step).backward()
            with torch.no_grad():
                before = [p - 0.1 * p.grad for p in model.parameters()]
            optimizer.step()
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        for p, q in zip(model.parameters(), before):  # this rank's own step is all that happened
            torch.testing.assert_close(p, q)
        return {"rank": rank, "step": step}


def test_a_rank_that_dies_is_an_error_at_the_next_average_and_leaves_own_parameters():
    outcome = run_ranks(3, a_rank_is_killed, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        assert report["result"]["step"] in (3, 7), report  # who dies may have ended a step that others have not
