"""DistributedOptimizer and the broadcasts of training state."""

import gc
import warnings
import weakref

import rueda.torch as hvd
import torch
from expect import raises
from worlds import ranks

WORLD = "torch"


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch(rank, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 4, generator=generator)


def gradients(model, steps_of_rank):
    """Gradients by plain PyTorch: per rank a list of inputs whose losses are summed."""
    result = []
    for inputs in steps_of_rank:
        model.zero_grad()
        for x in inputs:
            model(x).square().mean().backward()
        result.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    return result


def average(per_rank, divide=True):
    totals = [sum(grads) for grads in zip(*per_rank)]
    return [total / len(per_rank) for total in totals] if divide else totals


def wrap(model, **options):
    options.setdefault("named_parameters", model.named_parameters())
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


def backward(model, step=0):
    model(batch(hvd.rank(), step)).square().mean().backward()


def check(model, expected, **tolerance):
    for p, grad in zip(model.parameters(), expected):
        torch.testing.assert_close(p.grad, grad, **tolerance)


EVERY_FORM = {
    "plain": {},
    "unnamed": {"named_parameters": None},
    "predivided": {"gradient_predivide_factor": 2.0},
    "two groups": {"groups": 2},
    "one group": {"groups": 1},
    "more groups than parameters": {"groups": 9},
    "summed": {"op": hvd.Sum},
}


@ranks(1, 2, 3)
def test_gradients_equal_manual_averaging():
    for form, options in EVERY_FORM.items():
        model = make_model()
        reference = gradients(make_model(), [[batch(r)] for r in range(hvd.size())])
        expected = average(reference, divide=form != "summed")
        optimizer = wrap(model, **options)
        for _ in range(2):  # the second time the tensors are known
            backward(model)
            optimizer.synchronize()
            check(model, expected)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
            model.load_state_dict(make_model().state_dict())


@ranks(1, 2, 3)
def test_explicit_groups_and_compression():
    expected = average(gradients(make_model(), [[batch(r)] for r in range(hvd.size())]))
    for make_options in (
        lambda first, second, *rest: {"groups": [[first, second]]},
        lambda *parameters: {"compression": hvd.Compression.bf16},
        lambda first, *rest: {"compression": hvd.Compression.fp16, "groups": [[first]]},
    ):
        model = make_model()
        optimizer = wrap(model, **make_options(*model.parameters()))
        backward(model)
        optimizer.synchronize()
        check(model, expected, rtol=2e-2, atol=2e-3)
        optimizer.zero_grad()


@ranks(1, 2, 3)
def test_steps_equal_those_of_one_process_on_all_data():
    model, alone = make_model(), make_model()
    optimizer = wrap(model)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(5):
        everyone = gradients(alone, [[batch(r, step)] for r in range(hvd.size())])
        for p, grad in zip(alone.parameters(), average(everyone)):
            p.grad = grad
        plain.step()
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    for p, q in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(p, q)


@ranks(1, 2, 3)
def test_gradients_of_several_backward_passes_are_summed_and_reduced_once():
    model = make_model()
    size = hvd.size()
    expected = average(gradients(make_model(), [[batch(r, 0), batch(r, 1)] for r in range(size)]))
    optimizer = wrap(model, backward_passes_per_step=2)
    backward(model, 0)
    backward(model, 1)
    optimizer.synchronize()
    check(model, expected)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    backward(model)
    optimizer.step()


@ranks(2, 3)
def test_a_backward_too_many_is_refused():
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    with raises(AssertionError, "more than backward_passes_per_step times"):
        backward(model)
    with raises(RuntimeError, "changed while they were being reduced", "2.bias"):
        optimizer.synchronize()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@ranks(2, 3)
def test_zero_grad_is_refused_while_gradients_travel():
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    with raises(AssertionError, "zero_grad() was called after loss.backward()"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in model.parameters())


@ranks(1, 2, 3)
def test_a_gradient_that_did_not_come_counts_as_zero():
    """Rank 0 uses the first layer, the others both: everyone reduces everything."""
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    named = [(f"{i}.{n}", p) for i, m in enumerate(layers) for n, p in m.named_parameters()]
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.0)
    for options in ({}, {"groups": 1}):
        distributed = hvd.DistributedOptimizer(optimizer, named_parameters=named, **options)
        y = layers[0](torch.ones(1, 2))
        (y if hvd.rank() == 0 else y + layers[1](torch.ones(1, 2))).sum().backward()
        distributed.step()
        if hvd.size() > 1:
            share = (hvd.size() - 1) / hvd.size()
            torch.testing.assert_close(layers[1].bias.grad, torch.full((2,), share))
            torch.testing.assert_close(layers[0].bias.grad, torch.ones(2))
        distributed.zero_grad()


@ranks(2)
def test_what_was_begun_and_thrown_away_begins_anew():
    """Of a group that some gradients have reached, and of several backward passes."""
    expected = average(gradients(make_model(), [[batch(r), batch(r)] for r in range(2)]))
    for options in ({}, {"groups": 1}):
        model = make_model()
        optimizer = wrap(model, backward_passes_per_step=2, **options)
        for passes in (1, 2, 1):
            for _ in range(passes):  # of one gradient alone
                next(model.parameters()).sum().backward()
            if passes == 2 and not options:
                optimizer.synchronize()  # it was reduced
            optimizer.zero_grad()
        for _ in range(2):
            backward(model)
        optimizer.step()
        check(model, expected)


@ranks(1, 2)
def test_synchronising_twice_warns_once():
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    text = "optimizer.step() called without optimizer.skip_synchronize()"
    assert [str(w.message).startswith(text) for w in caught] == [True], caught
    optimizer.zero_grad()
    backward(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert not caught, caught


@ranks(1, 2)
def test_wrong_arguments_are_refused():
    model = make_model()
    named = list(model.named_parameters())
    with raises(ValueError, "sequence of tuples"):
        wrap(model, named_parameters=list(model.parameters()))
    with raises(ValueError, "duplicates"):
        wrap(model, named_parameters=named + named[:1])
    with raises(ValueError, "were not named"):
        wrap(model, named_parameters=named[1:])
    for number in (0, -1):
        with raises(ValueError, "backward_passes_per_step"):
            wrap(model, backward_passes_per_step=number)
    with raises(ValueError, "gradient_predivide_factor"):
        wrap(model, gradient_predivide_factor=2.0, op=hvd.Sum)
    for groups in (0, -1, "two", [[1]], [[named[0][1]], [named[0][1]]], [[torch.ones(1)]]):
        with raises(ValueError, "groups"):
            wrap(model, groups=groups)
    with raises(ValueError):
        wrap(model, process_set=hvd.ProcessSet([0]))


@ranks(1, 2)
def test_the_class_is_the_wrapped_optimizers():
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.1, 0.2))
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    assert type(optimizer).__name__ == "Adam" and isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["betas"] == (0.1, 0.2)
    assert set(optimizer._parameter_names.values()) == dict(model.named_parameters()).keys()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    backward(model)
    loss = optimizer.step(lambda: torch.tensor(3.0))
    assert loss == 3
    scheduler.step()
    assert abs(optimizer.param_groups[0]["lr"] - 0.05) < 1e-9
    optimizer.load_state_dict(optimizer.state_dict())
    if not hasattr(optimizer, "register_step_post_hook"):
        return  # PyTorch before 2.0
    calls = []
    optimizer.register_step_post_hook(lambda *ignored: calls.append(1))
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert calls == [1]


@ranks(2)
def test_gradients_that_are_not_contiguous_or_sparse():
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    table = torch.nn.Embedding(6, 2, sparse=True)
    rank = hvd.rank()
    named = [("w", conv.weight), ("b", conv.bias), ("t", table.weight)]
    for as_dense in (False, True):
        inner = torch.optim.SGD([p for _, p in named], lr=0.0)
        optimizer = hvd.DistributedOptimizer(inner, named, sparse_as_dense=as_dense)
        image = torch.full((1, 3, 5, 5), rank + 1.0).to(memory_format=torch.channels_last)
        (conv(image).sum() + table(torch.tensor([0, rank + 1])).sum()).backward()
        optimizer.synchronize()
        torch.testing.assert_close(conv.weight.grad.contiguous(), torch.full((4, 3, 3, 3), 13.5))
        expected = torch.tensor([1.0, 0.5, 0.5, 0, 0, 0])[:, None].expand(6, 2)
        torch.testing.assert_close(table.weight.grad.to_dense(), expected)
        assert table.weight.grad.is_sparse
        optimizer.zero_grad()


@ranks(2, 3)
def test_a_failed_reduction_leaves_the_optimizer_usable():
    model = make_model()
    optimizer = wrap(model)
    if hvd.rank() == 0:
        optimizer._parameter_names[model[0].bias] = "strange"
        optimizer._parameter_names[model[2].bias] = "0.bias"  # 2 elements, where peers have 8
    else:
        optimizer._parameter_names[model[2].bias] = "strange"
    backward(model)
    with raises(hvd.HorovodInternalError, "Mismatched ALLREDUCE tensor shapes"):
        optimizer.step()
    model.zero_grad()
    again = wrap(make_model())
    again.step()


@ranks(2, 3)
def test_parameters_and_optimizer_state_arrive_from_the_root():
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1 + hvd.rank(), momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.1 * (hvd.rank() + 1), betas=(0.5, 0.6), amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.Rprop(p, etas=(0.4, 1.3)),
    ):
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 2)
        optimizer = make(model.parameters())
        if hvd.rank() == 0:  # the others have no state yet
            for _ in range(3):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        everyone = hvd.allgather_object((model.state_dict(), optimizer.state_dict()))
        for weights, state in everyone:
            assert all(torch.equal(weights[k], everyone[0][0][k]) for k in weights)
            assert state["param_groups"] == everyone[0][1]["param_groups"]
            assert list(state["state"]) == [0, 1]
            for index, values in everyone[0][1]["state"].items():
                for key, value in values.items():
                    other = state["state"][index][key]
                    assert torch.equal(other, value) if torch.is_tensor(value) else other == value, key
    with raises(ValueError):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    with raises(ValueError):
        hvd.broadcast_parameters(model.parameters(), 0)
    with raises(ValueError, "'b' is not a tensor but int", "broadcast_object"):
        hvd.broadcast_parameters({"b": 3}, 0)
    transposed = torch.full((2, 3), float(hvd.rank())).t()
    hvd.broadcast_parameters([("t", transposed)], hvd.size() - 1)
    assert (transposed == hvd.size() - 1).all()


def every_optimizer():
    """The optimizers of this PyTorch whose state can be broadcast."""
    for kind in torch.optim.Optimizer.__subclasses__():
        wanted = kind.__module__.startswith("torch.optim")
        if wanted and kind not in (torch.optim.LBFGS, torch.optim.SparseAdam):
            yield kind


@ranks(2)
def test_the_state_of_every_optimizer_arrives_exactly():
    kinds = list(every_optimizer())
    assert len(kinds) >= 10, kinds
    for kind in kinds:
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 2, bias=False)  # some optimizers take matrices only
        optimizer = kind(model.parameters(), lr=0.01 * (hvd.rank() + 1))
        distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for _ in range(2):
            distributed.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            distributed.step()
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(distributed, 0)
        states = hvd.allgather_object(distributed.state_dict())
        for state in states:
            assert state["param_groups"] == states[0]["param_groups"], kind
            for key, value in states[0]["state"].get(0, {}).items():
                other = state["state"][0][key]
                assert type(other) is type(value), (kind, key)
                equal = torch.equal(other, value) if torch.is_tensor(value) else other == value
                assert equal, (kind, key)
        distributed.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        distributed.step()
        hvd.check_replicas(distributed)


EVERY_POLICY = {
    "plain": {},
    "groups": {"groups": 2},
    "cast": {"compression": hvd.Compression.bf16},
    "compressed": {"compression": hvd.Compression.int8},
    "in shared memory": {"gradients_in_arena": True},
    "steps": {"op": hvd.Adasum},
    "as dense": {"sparse_as_dense": True},
    "several passes": {"backward_passes_per_step": 2},
}


def wrapped_and_forgotten(policy, end):
    """Weak references to a model, its parameters and its optimizer, when nobody has them any more."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(4, 4, sparse=policy in ("plain", "as dense")), *make_model()
    )
    optimizer = wrap(model, **EVERY_POLICY[policy])
    for step in range(3):  # the third takes the fast path
        optimizer.zero_grad()
        for _ in range(EVERY_POLICY[policy].get("backward_passes_per_step", 1)):
            model(torch.tensor([hvd.rank(), step])).sum().backward()
        if step < 2 or end == "step":
            optimizer.step()
    return [weakref.ref(x) for x in (model, optimizer, *model.parameters())]


@ranks(2, slow=(1,))  # it compiles for seconds
def test_an_optimizer_that_nobody_has_any_more_is_freed_with_its_model():
    for policy in EVERY_POLICY:
        for end in ("step", "backward"):
            found = wrapped_and_forgotten(policy, end)
            gc.collect()
            alive = [type(x()).__name__ for x in found if x() is not None]
            assert not alive, f"{policy}, after {end}: {alive} live on"
    hvd.barrier()


@ranks(2)
def test_a_parameter_is_free_of_an_optimizer_that_nobody_has_any_more():
    model = make_model()
    for _ in range(2):
        optimizer = wrap(model)
        backward(model)
        optimizer.step()
        model.zero_grad()
        del optimizer
        gc.collect()
        if hvd.rank() == 0:  # of this rank alone: nothing travels
            backward(model)
            expected = gradients(make_model_like(model), [[batch(0)]])[0]
            check(model, expected)
            model.zero_grad()
    hvd.barrier()


def make_model_like(model):
    other = make_model()
    other.load_state_dict(model.state_dict())
    return other
