"""Parameters of a sharded optimizer that arrive while the next forward runs."""

import copy
import gc
import pickle
import weakref

import rueda.torch as hvd
import torch
from expect import raises
from test_sharded_optimizer import Model, backward, check_alike, train, wrap
from worlds import ranks, results, run_ranks

WORLD = "torch"
STAGES = "state", "gradients"


@ranks(1, 2, 3)
def test_the_same_steps_as_with_values_that_are_whole_after_each():
    for kind in (torch.optim.SGD, torch.optim.Adam):
        whole = Model()
        plain = wrap(whole, kind)
        train(whole, plain, 4)
        for stage in STAGES:
            model = Model()
            optimizer = wrap(model, kind, shard=stage, module=model)
            train(model, optimizer, 4)
            check_alike(model, whole)


class Held:
    """A gathering that ends when somebody waits for it."""

    def __init__(self, started):
        self.started, self.waits = started, 0

    def wait(self):
        self.waits += 1
        return self.started.wait()


def a_step_whose_gathering_is_held():
    model = Model()
    optimizer = wrap(model, shard="state", module=model)
    held, start = {}, optimizer._arrivals.start

    def hold(under_way):
        held.update({batch: Held(started) for batch, started in under_way.items()})
        start(dict(held))

    optimizer._arrivals.start = hold
    train(model, optimizer, 1)
    assert held and not any(each.waits for each in held.values())
    return model, optimizer, held


def waits(held):
    return sum(each.waits for each in held.values())


@ranks(2)
def test_whoever_takes_a_parameter_waits_and_nobody_twice():
    looks = [
        lambda model: model(torch.ones(3, 3, 4, 4)),
        lambda model: model.first.weight,
        lambda model: model.scale,
        lambda model: list(model.parameters()),
        lambda model: model.state_dict(),
        lambda model: copy.deepcopy(model),
        lambda model: pickle.dumps(model.first),
        lambda model: model.first._parameters.get("bias"),
    ]
    for look in looks:
        model, optimizer, held = a_step_whose_gathering_is_held()
        look(model)
        assert waits(held) == len(held)
        train(model, optimizer, 1, first=1)
        assert all(each.waits <= 2 for each in held.values())


@ranks(2)
def test_what_no_module_uses_is_waited_for_by_the_next_step_or_the_end():
    model, optimizer, held = a_step_whose_gathering_is_held()
    first = dict(held)
    optimizer.zero_grad()
    optimizer.step()
    assert waits(first) == len(first)
    model, optimizer, held = a_step_whose_gathering_is_held()
    kind = type(torch.nn.Linear(1, 1)._parameters)
    del optimizer
    gc.collect()
    assert waits(held) == len(held)
    assert all(type(each._parameters) is kind for each in model.modules())
    hvd.check_replicas(model)


@ranks(2)
def test_new_groups_and_later_optimizers():
    model, whole = Model(), Model()
    runs = []
    for each, options in ((model, {"shard": "gradients", "module": model}), (whole, {})):
        parts = list(each.parameters())
        named = list(each.named_parameters())
        optimizer = torch.optim.SGD([p for p in parts if p is not each.scale], lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, [(n, p) for n, p in named if p is not each.scale], **options)
        optimizer.add_param_group({"params": [each.scale]})
        runs.append((each, optimizer))
    for each, optimizer in runs:
        train(each, optimizer, 2)
    check_alike(model, whole)
    for each, options in ((model, {"shard": "state", "module": model}), (whole, {})):
        optimizer = wrap(each, **options)
        train(each, optimizer, 2, first=2)
    check_alike(model, whole)


@ranks(2)
def test_compiled_models_wait():
    if not hasattr(torch, "compile"):
        return
    model, whole = Model(), Model()
    optimizer = wrap(model, shard="state", module=model)
    plain = wrap(whole)
    train(torch.compile(model, backend="eager"), optimizer, 3)
    train(whole, plain, 3)
    check_alike(model, whole)


@ranks(2)
def test_two_optimizers_of_one_model_are_both_waited_for():
    model, whole = Model(), Model()
    for each, options in ((model, {"module": model, "shard": "state"}), (whole, {})):
        named = list(each.named_parameters())
        weights = [(n, p) for n, p in named if n.endswith("weight")]
        others = [(n, p) for n, p in named if not n.endswith("weight")]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in part], lr=0.1), part, **options)
            for part in (weights, others)
        ]
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            backward(each, step)
            for optimizer in optimizers:
                optimizer.step()
            if options:
                assert all(optimizer._arrivals._under_way for optimizer in optimizers)
                list(each.parameters())
                assert not any(optimizer._arrivals._under_way for optimizer in optimizers)
        del optimizer, optimizers
        gc.collect()
        assert type(each.first._parameters) is type(torch.nn.Linear(1, 1)._parameters)
    check_alike(model, whole)


@ranks(2)
def test_a_model_that_knows_its_optimizer_is_collected():
    model = Model()
    model.optimizer = wrap(model, shard="state", module=model)
    train(model, model.optimizer, 1)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def values_after_leaving():
    hvd.init()
    rank = hvd.rank()
    model = Model()
    optimizer = wrap(model, shard="state", module=model)
    train(model, optimizer, 1)
    hvd.shutdown()
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    hvd.init()
    hvd.check_replicas(model)
    optimizer = wrap(model, shard="state", module=model)
    train(model, optimizer, 1)
    hvd.shutdown()
    return {"rank": rank, "finite": finite}


def test_what_is_under_way_arrives_before_the_job_is_left():
    assert all(each["finite"] for each in results(run_ranks(2, values_after_leaving, manual=True)))


@ranks(1)
def test_wrong_arguments_are_refused():
    model = Model()
    with raises(ValueError, "module= is not for share="):
        wrap(model, shard="state", share="host", module=model)
    with raises(ValueError, "units= and init="):
        wrap(model, shard="state", module=model, units=1)
    with raises(ValueError, "give the model"):
        wrap(model, shard="state", module="model")
