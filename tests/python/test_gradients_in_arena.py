"""DistributedOptimizer(gradients_in_arena=True): the same numbers, in memory that ranks share."""

import gc
import warnings

import rueda.torch as hvd
import torch
from expect import is_shared
from test_optimizer import average, backward, batch, check, gradients, make_model
from worlds import ranks, results

WORLD = "torch"


def wrap(model, kind=torch.optim.SGD, **options):
    options.setdefault("named_parameters", model.named_parameters())
    optimizer = kind(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, gradients_in_arena=True, **options)


def places(model):
    return [p.grad.data_ptr() for p in model.parameters()]


def all_shared(model):
    return all(map(is_shared, places(model)))


def expected_of_step(step=0):
    return average(gradients(make_model(), [[batch(r, step)] for r in range(hvd.size())]))


def zero_grads(model, optimizer):
    """Every way to forget gradients that scripts use."""

    def by_hand():
        for p in model.parameters():
            p.grad = None

    return [
        optimizer.zero_grad,
        lambda: optimizer.zero_grad(set_to_none=False),
        model.zero_grad,
        lambda: model.zero_grad(set_to_none=False),
        by_hand,
    ]


@ranks(2, 3)
def test_gradients_are_right_and_stay_at_one_place_with_every_zero_grad():
    for options in ({}, {"groups": 2}, {"named_parameters": None}, {"op": hvd.Average}):
        model = make_model()
        optimizer = wrap(model, **options)
        first = None
        for step, zero_grad in enumerate(zero_grads(model, optimizer) * 2):
            backward(model, step)
            optimizer.synchronize()
            check(model, expected_of_step(step))
            assert all_shared(model)
            first = first or places(model)
            assert places(model) == first
            zero_grad()
            optimizer._this_step.synchronized = False


@ranks(1, 2, 3)
def test_steps_equal_those_without_bit_by_bit():
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        model, other = make_model(), make_model()
        optimizer = wrap(model, kind)
        plain = hvd.DistributedOptimizer(
            kind(other.parameters(), lr=0.1),
            named_parameters=[("plain." + n, p) for n, p in other.named_parameters()],
        )
        for step in range(4):
            for m, o in ((model, optimizer), (other, plain)):
                o.zero_grad()
                backward(m, step)
                o.step()
        for p, q in zip(model.parameters(), other.parameters()):
            assert torch.equal(p, q)


@ranks(2, 3)
def test_several_backward_passes_are_accumulated():
    model, size = make_model(), hvd.size()
    optimizer = wrap(model, backward_passes_per_step=3)
    steps = [[batch(r, 0), batch(r, 1), batch(r, 2)] for r in range(size)]
    expected = average(gradients(make_model(), steps))
    for _ in range(2):
        for step in range(3):
            backward(model, step)
        optimizer.synchronize()
        check(model, expected)
        assert all_shared(model)
        optimizer.zero_grad()
        optimizer._this_step.synchronized = False


@ranks(2, 3)
def test_clipping_and_scaling_between_synchronize_and_step():
    if not hasattr(torch.amp, "GradScaler"):
        return  # PyTorch before 2.3 has it for CUDA only
    model = make_model()
    optimizer = wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = expected_of_step()
    before = [p.detach().clone() for p in model.parameters()]
    scaler.scale(model(batch(hvd.rank())).square().mean()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    check(model, expected)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert norm > 1e-3 and all_shared(model)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    for p, old, grad in zip(model.parameters(), before, expected):
        torch.testing.assert_close(p.detach(), old - 0.1 * grad * (1e-3 / (norm + 1e-6)))


@ranks(2, 3)
def test_gradients_that_are_part_of_a_graph_stay_where_they_are():
    model = make_model()
    optimizer = wrap(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of the cycle that create_graph makes
        model(batch(hvd.rank())).square().mean().backward(create_graph=True)
    assert all(p.grad.requires_grad for p in model.parameters())
    optimizer.synchronize()
    assert all(p.grad.requires_grad for p in model.parameters())
    for p, grad in zip(model.parameters(), expected_of_step()):
        torch.testing.assert_close(p.grad.detach(), grad)
    optimizer.zero_grad()
    optimizer._this_step.synchronized = False
    backward(model)
    optimizer.synchronize()
    check(model, expected_of_step())
    assert all_shared(model)


class Replacing(torch.optim.SGD):
    """Puts other tensors where the gradients were."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad * 2
        return super().step(closure)


@ranks(2)
def test_optimizers_may_replace_gradients():
    model = make_model()
    optimizer = wrap(model, Replacing)
    for step in range(4):
        if step % 2 == 0:
            optimizer.zero_grad(set_to_none=step == 0)
        else:
            for p in model.parameters():
                p.grad = None
        reference = make_model()
        reference.load_state_dict(model.state_dict())
        expected = average(gradients(reference, [[batch(r, step)] for r in range(hvd.size())]))
        backward(model, step)
        optimizer.step()
        for p, grad in zip(model.parameters(), expected):
            torch.testing.assert_close(p.grad, 2 * grad)


@ranks(2)
def test_a_gradient_that_the_script_keeps_is_not_overwritten():
    model = make_model()
    optimizer = wrap(model)
    backward(model, 0)
    optimizer.synchronize()
    kept = [p.grad for p in model.parameters()]
    aliases = [p.grad.view(-1)[:1] for p in model.parameters()]
    copies = [grad.clone() for grad in kept]
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=True)
        optimizer._this_step.synchronized = False
        backward(model, step)
        optimizer.synchronize()
        assert all_shared(model)
        if step == 1:
            del kept[2:]  # of these only the aliases are left
    for old, copy in zip(kept, copies):
        assert torch.equal(old, copy)
    for alias, copy in zip(aliases, copies):
        assert torch.equal(alias, copy.view(-1)[:1])
    del kept, aliases, old, alias
    gc.collect()
    optimizer.zero_grad()


@ranks(2)
def test_gradients_in_the_scripts_own_buffers_stay_there():
    model = make_model()
    optimizer = wrap(model)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    own = torch.zeros_like(parameters[0])
    at = 0
    for p in parameters:
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    parameters[0].grad = own
    backward(model)
    optimizer.synchronize()
    expected = expected_of_step()
    torch.testing.assert_close(own, expected[0])
    torch.testing.assert_close(
        flat[own.numel() :], torch.cat([grad.reshape(-1) for grad in expected[1:]])
    )


@ranks(2)
def test_unused_sparse_permuted_and_frozen_parameters():
    torch.manual_seed(1)
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    conv = torch.nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    unused = torch.nn.Linear(2, 2)
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    model = torch.nn.ModuleList([embedding, conv, unused, frozen])
    optimizer = wrap(model)
    for _ in range(2):
        images = torch.ones(1, 2, 5, 5).to(memory_format=torch.channels_last) * (hvd.rank() + 1)
        loss = embedding(torch.tensor([hvd.rank()])).sum() + conv(images).sum()
        loss.backward()
        optimizer.synchronize()
        assert embedding.weight.grad.is_sparse
        rows = embedding.weight.grad.to_dense()
        assert torch.equal(rows[:2], torch.full((2, 3), 0.5)) and not rows[2:].any()
        torch.testing.assert_close(conv.weight.grad, torch.full((4, 2, 3, 3), 13.5))
        assert not unused.weight.grad.any() and frozen.weight.grad is None
        optimizer.zero_grad()
        optimizer._this_step.synchronized = False


def with_a_small_heap():
    """4 MiB of gradients and a heap of 1 MiB: those that do not fit stay outside."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(16)))
    optimizer = wrap(model)
    for said in (1, 0):  # once is enough
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (model(torch.ones(1, 256)).sum() * (hvd.rank() + 1)).backward()
        assert sum("RUEDA_HEAP_BYTES" in str(w.message) for w in caught) == said
        optimizer.synchronize()
        sums = hvd.allgather(torch.stack([p.grad.sum() for p in model.parameters()])[None])
        assert torch.equal(sums[0], sums[1])
        inside = sum(map(is_shared, places(model)))
        assert 0 < inside < 16, inside
        optimizer.zero_grad()
        optimizer._this_step.synchronized = False
    return inside


def test_gradients_that_do_not_fit_stay_outside(run_ranks):
    outcome = run_ranks(2, with_a_small_heap, env={"RUEDA_HEAP_BYTES": str(1 << 20)})
    assert len(results(outcome)) == 2
