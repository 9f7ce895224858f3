"""What scripts go on to do with the optimizer that they wrapped, and with groups, after wrapping."""

import copy
import io
import pickle
import warnings

import rueda.torch as hvd
import torch
from expect import raises
from test_optimizer import average, backward, batch, check, gradients, make_model, wrap
from test_training_loops import everyone, weights
from worlds import ranks

WORLD = "torch"


@ranks(1, 3)
def test_a_scheduler_of_the_plain_optimizer_goes_on_after_states_were_broadcast_and_loaded():
    for end in ("broadcast", "load", "load into the plain one"):
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + hvd.rank()), momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        saved = copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][0]["lr"] = saved["param_groups"][0]["initial_lr"] = 0.1
        if end == "broadcast":
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        elif end == "load":
            optimizer.load_state_dict(saved)
        else:
            plain.load_state_dict(saved)
        if end != "broadcast":
            scheduler.base_lrs = [0.1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that the scheduler stepped first
            for step in range(3):
                optimizer.zero_grad()
                backward(model, step)
                optimizer.step()
                scheduler.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 0.0125, end
        assert optimizer.state[model[0].bias] is plain.state[model[0].bias]
        assert all(everyone(weights(model))), end


@ranks(2)
def test_a_plain_optimizer_whose_state_was_broadcast_keeps_its_scheduler():
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()), betas=(0.1, 0.2 + hvd.rank() / 10))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, gamma=0.5)
    if hvd.rank() == 0:
        model(batch(0)).sum().backward()
        plain.step()
    groups, group, state = plain.param_groups, plain.param_groups[0], plain.state
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    assert plain.param_groups is groups and groups[0] is group and plain.state is state
    assert group["betas"] == (0.1, 0.2) and group["lr"] == 0.1 and len(state) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the others have not stepped
        scheduler.step()
    assert group["lr"] == 0.05


@ranks(2, 3)
def test_layers_that_are_unfrozen_and_parameters_that_are_added_are_reduced():
    def unfreeze(optimizer, plain, model, head):
        model[0].weight.requires_grad_(True)

    def add(optimizer, plain, model, head):
        optimizer.add_param_group({"params": list(head.parameters())})

    def add_to_plain(optimizer, plain, model, head):
        plain.add_param_group({"params": list(head.parameters())})

    def extend(optimizer, plain, model, head):
        plain.param_groups[0]["params"] += head.parameters()

    for change in (unfreeze, add, add_to_plain, extend):
        for options in ({}, {"op": hvd.Adasum}, {"groups": 1}, {"named_parameters": None}):
            model, head = make_model(), torch.nn.Linear(2, 1)
            with torch.no_grad():
                for p in head.parameters():
                    p.fill_(0.5)
            model[0].weight.requires_grad_(False)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            options.setdefault("named_parameters", list(model.named_parameters()))
            optimizer = hvd.DistributedOptimizer(plain, **options)
            for step in range(4):
                if step == 2:
                    change(optimizer, plain, model, head)
                optimizer.zero_grad()
                head(model(batch(hvd.rank(), step))).square().mean().backward()
                if step < 2:
                    head.zero_grad()
                optimizer.step()
                assert all(everyone(weights(model, head))), (change.__name__, options, step)


@ranks(2)
def test_a_parameter_that_was_replaced_in_its_group_is_reduced_in_the_others_place():
    model = make_model()
    optimizer = wrap(model)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        model[2].bias = torch.nn.Parameter(torch.zeros(2))
        optimizer.param_groups[0]["params"][3] = model[2].bias
    assert len(optimizer._gradient_of) == len(optimizer._gradient_hooks) == 4
    assert all(everyone(weights(model)))


@ranks(2, 3)
def test_a_loop_over_the_plain_optimizer_is_refused():
    for options in ({}, {"backward_passes_per_step": 2}, {"groups": 1}):
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
        before = weights(model)
        plain.zero_grad()
        backward(model)
        with raises(AssertionError, "DistributedOptimizer", "before its gradients were reduced"):
            plain.step()
        assert torch.equal(before, weights(model))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()
        plain.step()  # they are reduced
        assert all(everyone(weights(model)))
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        del optimizer
        with raises(RuntimeError, "which nobody has any more"):
            plain.step()


@ranks(1, 2)
def test_a_copy_of_a_distributed_optimizer_is_a_plain_one():
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    backward(model)
    optimizer.step()
    stream = io.BytesIO()
    torch.save((model, optimizer), stream)
    stream.seek(0)
    ways = (
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
        torch.load(stream, **({"weights_only": False} if torch.__version__ > "1.14" else {})),
    )
    for copied, plain in ways:
        assert type(plain) is torch.optim.Adam and plain.param_groups[0]["lr"] == 0.5
        assert plain.param_groups[0]["params"][0] is copied[0].weight
        assert torch.equal(plain.state[copied[0].bias]["exp_avg"], optimizer.state[model[0].bias]["exp_avg"])
        again = hvd.DistributedOptimizer(plain, copied.named_parameters())
        again.zero_grad()
        backward(copied, 1)
        again.step()
        assert all(everyone(weights(copied)))


@ranks(2)
def test_a_gradient_that_one_rank_throws_away_is_an_error_there_and_no_hang():
    model = make_model()
    optimizer = wrap(model)
    for step in range(4):
        optimizer.zero_grad()
        backward(model, step)
        if step == 2 and hvd.rank() == 1:
            model[0].bias.grad = None
            with raises(RuntimeError, "changed while they were being reduced", "0.bias"):
                optimizer.step()
        else:
            optimizer.step()


@ranks(2)
def test_a_layer_that_all_ranks_freeze_stays_as_it_is():
    for options in ({}, {"groups": 1}, {"compression": hvd.Compression.bf16}):
        model = make_model()
        inner = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), **options)
        for step in range(4):
            if step == 2:
                model[0].requires_grad_(False)
                before = weights(model[0]).clone()
            optimizer.zero_grad(set_to_none=True)
            backward(model, step)
            optimizer.step()
        assert torch.equal(before, weights(model[0])), options
        model[0].requires_grad_(True)
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()
        check(model, average(gradients(copy.deepcopy(model), [[batch(r)] for r in range(2)])), rtol=2e-2, atol=2e-3)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert not torch.equal(before, weights(model[0]))


@ranks(2)
def test_what_is_broadcast_may_be_any_mapping_or_pairs():
    model = make_model()
    by_name = torch.nn.ParameterDict({f"p{i}": p for i, p in enumerate(model.parameters())})
    for params in (by_name, iter(model.state_dict().items()), tuple(model.state_dict().items())):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(hvd.rank() + 1.0)
        hvd.broadcast_parameters(params, 1)
        assert all((p == 2).all() for p in model.parameters()), params
    hvd.broadcast_parameters(model.named_parameters(), 0)


@ranks(1, 2)
def test_lazy_modules_are_refused_with_advice():
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with raises(ValueError, "'0.weight' has no shape yet", "run one batch"):
        hvd.DistributedOptimizer(plain, model.named_parameters())
    with raises(ValueError, "'0.bias' has no shape yet"):
        hvd.broadcast_parameters(model.state_dict(), 0)
    with raises(ValueError, "LBFGS", "broadcast_object"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(make_model().parameters()), 0)
    model(torch.ones(1, 3))
    hvd.broadcast_parameters(model.state_dict(), 0)
    wrap(model)
