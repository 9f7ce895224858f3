"""DistributedOptimizer with shards: the same parameters and state as without, in parts of the memory."""

import copy
import gc
import io
import weakref

import pytest
import rueda
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch.sharding._elementwise import KNOWN
from worlds import ranks

WORLD = "torch"
STAGES = "state", "gradients"
SETTINGS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Rprop": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
}


class Model(torch.nn.Module):
    """Odd sizes, a layer whose weight has other strides, one that is tied, and one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.image = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.first = torch.nn.Linear(20, 13)
        self.tied = self.first
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.frozen = torch.nn.Linear(13, 13)
        self.last = torch.nn.Linear(13, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x, short=False):
        x = self.image(x).flatten(1)
        x = self.frozen(torch.tanh(self.tied(x))) * self.scale
        return x if short else self.last(x)


def batch(rank, step):
    return torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(model, step, **arguments):
    loss = model(batch(hvd.rank(), step), **arguments).square().mean()
    loss.backward()
    return loss


def wrap(model, kind=torch.optim.SGD, optimizer=None, **options):
    optimizer = optimizer or kind(model.parameters(), **SETTINGS.get(kind.__name__, {}))
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def check_alike(one, other):
    for (name, p), q in zip(one.named_parameters(), other.parameters()):
        assert torch.equal(p, q), name
        assert p.stride() == q.stride(), name


def check_states(one, other):
    """Of two state_dicts."""
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys(), (one["state"].keys(), other["state"].keys())
    for number, values in other["state"].items():
        assert one["state"][number].keys() == values.keys()
        for key, value in values.items():
            ours = one["state"][number][key]
            if isinstance(value, torch.Tensor):
                assert torch.equal(ours, value) and ours.shape == value.shape, (number, key)
                assert ours.stride() == value.stride(), (number, key)
            else:
                assert ours == value, (number, key)


@ranks(1, 2, 3)
def test_every_optimizer_steps_as_without_shards():
    for kind in KNOWN:
        whole = Model()
        plain = wrap(whole, kind)
        train(whole, plain, 3)
        for stage in STAGES:
            model = Model()
            optimizer = wrap(model, kind, shard=stage)
            train(model, optimizer, 3)
            check_alike(model, whole)
            check_states(optimizer.state_dict(), plain.state_dict())
            assert type(optimizer).__name__ == kind.__name__ and isinstance(optimizer, kind)


@ranks(4)
def test_sums_scaled_before_and_summed():
    for options in ({"op": hvd.Sum}, {"gradient_predivide_factor": 4.0}):
        whole, model = Model(), Model()
        plain, optimizer = wrap(whole, **options), wrap(model, shard="state", **options)
        train(whole, plain, 2)
        train(model, optimizer, 2)
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@ranks(2, 3)
def test_groups_with_options_of_their_own_and_schedulers():
    def make(model, **options):
        weights = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        plain = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.05}], lr=0.01)
        before = torch.optim.lr_scheduler.StepLR(plain, 2)
        optimizer = wrap(model, optimizer=plain, **options)
        after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return optimizer, before, after

    for stage in STAGES:
        whole, model = Model(), Model()
        runs = [(whole, *make(whole)), (model, *make(model, shard=stage))]
        for step in range(5):
            for each, optimizer, *schedulers in runs:
                optimizer.zero_grad()
                backward(each, step)
                optimizer.step()
                for scheduler in schedulers:
                    scheduler.step()
            check_alike(model, whole)


@ranks(2, 3)
def test_passes_without_synchronisation_and_parameters_that_are_not_used():
    for stage in STAGES:
        whole, model = Model(), Model()
        runs = [(whole, wrap(whole, backward_passes_per_step=2)), (model, wrap(model, shard=stage, backward_passes_per_step=2))]
        for each, optimizer in runs:
            for step in range(3):
                optimizer.zero_grad()
                backward(each, 2 * step)
                backward(each, 2 * step + 1, short=step == 1)
                optimizer.step()
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        whole, model = Model(), Model()
        for each, optimizer in ((whole, wrap(whole)), (model, wrap(model, shard=stage))):
            for step in range(3):
                optimizer.zero_grad(set_to_none=step == 1)
                with optimizer.no_sync():
                    backward(each, step)
                    backward(each, step + 10)
                backward(each, step + 20, short=step == 1 and hvd.rank() == 0)
                optimizer.step()
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(2, 3)
def test_clipping_by_the_norm_of_all_shares():
    for stage in STAGES:
        for norm_type in (2.0, 1.0, float("inf")):
            whole, model = Model(), Model()
            plain, optimizer = wrap(whole), wrap(model, shard=stage)
            for each, its in ((whole, plain), (model, optimizer)):
                its.zero_grad()
                backward(each, 0)
            norms = [its.clip_grad_norm_(0.01, norm_type) for its in (plain, optimizer)]
            torch.testing.assert_close(norms[1], norms[0])
            plain.step()
            optimizer.step()
            for p, q in zip(model.parameters(), whole.parameters()):
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_a_gradient_scaler_skips_the_step_on_all_ranks():
    for stage in STAGES:
        whole, model = Model(), Model()
        for each, optimizer in ((whole, wrap(whole)), (model, wrap(model, shard=stage))):
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            for step in range(4):
                optimizer.zero_grad()
                loss = each(batch(hvd.rank(), step)).square().mean()
                if step == 1 and hvd.rank() == 1:
                    loss = loss * float("inf")  # one rank alone overflows
                scaler.scale(loss).backward()
                if step == 2:
                    scaler.unscale_(optimizer)
                    optimizer.clip_grad_norm_(0.1)
                scaler.step(optimizer)
                scaler.update()
            assert scaler.get_scale() == 128.0, scaler.get_scale()
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_a_closure_and_gradients_that_are_synchronised_by_hand():
    for stage in STAGES:
        whole, model = Model(), Model()
        for each, optimizer in ((whole, wrap(whole)), (model, wrap(model, shard=stage))):

            def closure(each=each, optimizer=optimizer):
                optimizer.zero_grad()
                return backward(each, 0)

            first = optimizer.step(closure)
            assert float(hvd.allreduce(first.detach(), name="loss")) == pytest.approx(float(first))
            optimizer.zero_grad()
            backward(each, 1)
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        check_alike(model, whole)


@ranks(1, 2, 3)
def test_state_goes_to_and_comes_from_a_plain_optimizer():
    whole = Model()
    plain = wrap(whole, torch.optim.Adam)
    train(whole, plain, 2)
    stream = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimizer": plain.state_dict()}, stream)
    for stage in STAGES:
        stream.seek(0)
        saved = torch.load(stream)
        model = Model()
        optimizer = wrap(model, torch.optim.Adam, shard=stage)
        groups = optimizer.param_groups
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert optimizer.param_groups is groups
        again = Model()  # and one that is wrapped when it has its state
        again.load_state_dict(model.state_dict())
        loaded = torch.optim.Adam(again.parameters(), **SETTINGS["Adam"])
        loaded.load_state_dict(optimizer.state_dict())
        resumed = wrap(again, optimizer=loaded, shard=stage)
        continued, theirs = copy.deepcopy(whole), torch.optim.Adam(whole.parameters(), **SETTINGS["Adam"])
        theirs.load_state_dict(plain.state_dict())
        theirs = wrap(whole, optimizer=theirs)
        for each, its in ((whole, theirs), (model, optimizer), (again, resumed)):
            train(each, its, 2, first=2)
        check_alike(model, whole)
        check_alike(again, whole)
        check_states(optimizer.state_dict(), theirs.state_dict())
        whole, plain = continued, wrap(continued, torch.optim.Adam)
        plain.load_state_dict(saved["optimizer"])


@ranks(3)
def test_a_process_set_shards_among_its_members():
    members = hvd.add_process_set([0, 2])
    for stage in STAGES:
        whole, model = Model(), Model()
        train(whole, wrap(whole, process_set=members), 2)
        optimizer = wrap(model, shard=stage, process_set=members)
        train(model, optimizer, 2)
        check_alike(model, whole)
        assert len(optimizer.state_dict()["state"]) == 7
    hvd.remove_process_set(members)


@ranks(2)
def test_the_usual_broadcasts_at_the_beginning():
    model = Model()
    if hvd.rank() == 1:
        with torch.no_grad():
            model.first.weight.zero_()
    optimizer = wrap(model, torch.optim.Adam, shard="state")
    if hvd.rank() == 1:
        optimizer.param_groups[0]["lr"] = 5.0
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    train(model, optimizer, 2)
    whole = Model()
    train(whole, wrap(whole, torch.optim.Adam), 2)
    check_alike(model, whole)
    hvd.check_replicas(model)


@ranks(2, 4)
def test_memory_is_that_of_a_share():
    counts = {}
    for stage in STAGES:
        model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 300))
        optimizer = wrap(model, torch.optim.Adam, shard=stage)
        x = torch.randn(2, 300)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        total = sum(p.numel() for p in model.parameters())
        held = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
        names = 3 if SETTINGS["Adam"]["amsgrad"] else 2
        assert held <= 1.05 * names * total / hvd.size()
        counts[stage] = sum(b.sum.numel() if b.gradients is None else b.gradients.numel() for b in optimizer._batches)
        if stage == "gradients":
            assert all(p.grad is None for p in model.parameters())
            assert counts[stage] <= 1.05 * total / hvd.size()


@ranks(2)
def test_steady_steps_send_no_control_message_and_copy_nothing_to_be_reduced():
    x = torch.randn(2, 300)
    for stage in STAGES:
        model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 300))
        optimizer = wrap(model, torch.optim.Adam, shard=stage)
        counts = []
        for _ in range(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            counts.append(rueda.counters())
        before, after = counts[2], counts[5]
        assert after["control_messages"] == before["control_messages"]
        reduced = after["bytes_reduced"] - before["bytes_reduced"]
        assert reduced > 0 and after["bytes_in_place"] - before["bytes_in_place"] == reduced


@ranks(2)
def test_parameters_of_several_types_and_sparse_gradients():
    def make():
        torch.manual_seed(4)
        return torch.nn.ModuleDict(
            {"rows": torch.nn.Embedding(11, 6, sparse=True), "low": torch.nn.Linear(6, 5).bfloat16(), "high": torch.nn.Linear(5, 2).double()}
        )

    def run(model, optimizer):
        for step in range(3):
            optimizer.zero_grad()
            rows = model["rows"](torch.tensor([step, 3, 3 + hvd.rank()]))
            model["high"](model["low"](rows.bfloat16()).double()).square().mean().backward()
            optimizer.step()

    for stage in STAGES:
        whole, model = make(), make()
        run(whole, wrap(whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1), sparse_as_dense=True))
        run(model, wrap(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), shard=stage))
        check_alike(model, whole)


@ranks(1, 2)
def test_a_parameter_without_elements():
    for stage in STAGES:
        empty = torch.nn.Parameter(torch.zeros(0, 3))
        full = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))  # in another batch
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([empty, full], lr=0.5), shard=stage)
        (empty.sum() + full.sum()).backward()
        optimizer.step()
        assert empty.shape == (0, 3) and full.tolist() == [0.5] * 4


@ranks(2)
def test_what_cannot_be_sharded_is_refused_by_name():
    class Normalised(torch.optim.SGD):
        """Divides by the norm of the whole tensor."""

        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    p.grad.div_(p.grad.norm())
            return super().step(closure)

    class Signs(torch.optim.SGD):
        """Of somebody's own, element by element."""

        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.sign_()
            return super().step(closure)

    model = Model()
    with raises(ValueError, "LBFGS cannot be sharded"):
        wrap(model, torch.optim.LBFGS, shard="state")
    for kind in (Normalised, getattr(torch.optim, "Muon", Normalised), getattr(torch.optim, "Adafactor", Normalised)):
        with raises(ValueError, f"{kind.__name__} cannot be sharded"):
            wrap(model, optimizer=kind([p for p in model.parameters() if p.dim() == 2], lr=0.1), shard="state")
    whole, ours = Model(), Model()
    train(whole, wrap(whole, optimizer=Signs(whole.parameters(), lr=0.1)), 2)
    train(ours, wrap(ours, optimizer=Signs(ours.parameters(), lr=0.1), shard="state"), 2)
    check_alike(ours, whole)
    for options, words in (
        ({"shard": "everything"}, "shard='everything'"),
        ({"shard": "state", "op": hvd.Adasum}, "Average or Sum"),
        ({"shard": "state", "compression": hvd.Compression.fp16}, "compression is not for shard="),
        ({"shard": "state", "groups": 2}, "groups is not for shard="),
    ):
        with raises(ValueError, words):
            wrap(Model(), **options)
    optimizer = wrap(model, shard="state")
    with raises(ValueError, "DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer, shard="state")
    for copier in (copy.copy, copy.deepcopy):
        with raises(TypeError, "state_dict"):
            copier(optimizer)


@ranks(2)
def test_changes_from_outside_are_noticed():
    model = Model()
    optimizer = wrap(model, shard="state")
    train(model, optimizer, 1)
    model.zero_grad()
    backward(model, 1)
    with raises(AssertionError, "zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    with raises(RuntimeError, "zero_grad() after each step"):
        backward(model, 1)
    optimizer.zero_grad()
    backward(model, 1)
    with raises(AssertionError, "more than backward_passes_per_step"):
        backward(model, 1)
    optimizer.step()
    model.first.weight.data = model.first.weight.detach().clone()
    optimizer.zero_grad()
    backward(model, 2)
    with raises(RuntimeError, "replaced (first.weight)"):
        optimizer.step()
    other = Model()
    optimizer = wrap(other, shard="state")
    other.frozen.requires_grad_(True)
    with raises(RuntimeError, "requires_grad was changed", "frozen.weight"):
        train(other, optimizer, 1)
    third = Model()
    plain = torch.optim.SGD(third.parameters(), lr=0.1)
    first = wrap(third, optimizer=plain, shard="state")
    with raises(RuntimeError, "step() of an optimizer that was wrapped"):
        plain.step()
    second = wrap(third, shard="gradients")
    with raises(RuntimeError, "later DistributedOptimizer"):
        first.step()
    train(third, second, 1)


@ranks(2)
def test_models_stay_ordinary_and_memory_comes_back():
    model = Model()
    optimizer = wrap(model, shard="gradients")
    train(model, optimizer, 1)
    copied = copy.deepcopy(model)
    check_alike(copied, model)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    loaded = Model()
    loaded.load_state_dict(torch.load(stream))
    check_alike(loaded, model)
    optimizer.add_param_group({"params": [extra := torch.nn.Parameter(torch.ones(5))], "lr": 0.5})
    optimizer.zero_grad()
    (model(batch(0, 0)).sum() + extra.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(extra.detach(), torch.full((5,), 1 - 0.5 * 1.01))
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None, None]


class Halves(torch.nn.Module):
    """Two large layers, of which a rank may leave out the last, whose batch comes first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(600, 600) for _ in range(3))

    def forward(self, x, layers=3):
        for layer in list(self.layers)[:layers]:
            x = torch.tanh(layer(x))
        return x


@ranks(2)
def test_a_rank_that_leaves_layers_out_is_not_waited_for_within_backward():
    for passes in (1, 2):
        whole, model = Halves(), Halves()
        for each, optimizer in (
            (whole, wrap(whole, backward_passes_per_step=passes)),
            (model, wrap(model, shard="gradients", backward_passes_per_step=passes)),
        ):
            for step in range(2):
                optimizer.zero_grad()
                for n in range(passes):
                    x = torch.randn(2, 600, generator=torch.Generator().manual_seed(10 * step + n + hvd.rank()))
                    each(x, layers=3 - hvd.rank()).square().mean().backward()
                    hvd.allreduce(torch.ones(1), name="between backward and step")
                optimizer.step()
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(2)
def test_a_step_that_fails_on_all_ranks_can_be_made_again():
    for options in ({"shard": "state"}, {"shard": "gradients"}, {"shard": "gradients", "share": "host"}):
        whole, model = Model(), Model()
        plain, optimizer = wrap(whole), wrap(model, **options)
        train(whole, plain, 3)
        train(model, optimizer, 1)
        hook = optimizer.register_step_pre_hook(fails)
        with raises(RuntimeError, "this step fails"):
            train(model, optimizer, 1, first=1)
        hook.remove()
        hvd.barrier()
        train(model, optimizer, 2, first=1)
        check_alike(model, whole)


def fails(*_):
    raise RuntimeError("this step fails")


@ranks(2)
def test_an_optimizer_that_could_not_be_sharded_is_as_before():
    model = Model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if hvd.rank() == 0:
        backward(model, 0)
        plain.step()
    with raises(ValueError, "only some ranks have state"):
        wrap(model, optimizer=plain, shard="state")
    assert all(p is q for p, q in zip(plain.param_groups[0]["params"], model.parameters()))
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = wrap(model, optimizer=plain, shard="state", share="host")
    train(model, optimizer, 1)
