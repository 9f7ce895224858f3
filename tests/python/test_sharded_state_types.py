"""State of sharded optimizers that is kept in fewer bytes: what is rounded how, and that training goes as well."""

import pathlib
import sys

import pytest
import rueda
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch.sharding import load_plain
from rueda.torch.sharding._codecs import BLOCK, CODECS, seed
from test_sharded_checkpoint import remove, shared_folder
from test_sharded_optimizer import Model, backward, check_alike, check_states, train, wrap
from worlds import ranks

WORLD = "torch"
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)


def numbers(count=1 << 14):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, generator=generator)
    return x * torch.exp(2 * torch.randn(count, generator=generator))


@codecs
def test_rounding_is_right_on_average(codec):
    x = numbers(1024)
    each = [codec.decode(codec.encode(x, 0, seed(n, "layer", "key")), torch.float64) for n in range(400)]
    assert len({tuple(one.tolist()) for one in each}) > 300
    largest = x.abs().reshape(-1, BLOCK).amax(1).repeat_interleave(BLOCK)
    distance = 0.008 * x.abs() if codec.name == "bf16" else 4 / 127 * largest
    assert bool(((sum(each) / 400 - x).abs() < 4 * distance / 400**0.5 / 2).all())


@codecs
def test_what_was_rounded_stays(codec):
    parts = codec.encode(numbers(), 0, 5)
    again = codec.encode(codec.decode(parts, torch.float32), 0, None)
    assert all(torch.equal(one, other) for one, other in zip(parts, again))


@codecs
def test_a_part_is_rounded_as_in_the_whole(codec):
    x = numbers()
    whole = codec.decode(codec.encode(x, 0, 7), torch.float32)
    for first, last in ((0, 256), (256, 8192), (8192, 1 << 14)):
        part = codec.decode(codec.encode(x[first:last], first, 7), torch.float32)
        assert torch.equal(part, whole[first:last])


@codecs
def test_zeros_signs_infinities_and_what_is_small(codec):
    x = torch.zeros(4 * BLOCK)
    x[0], x[1], x[2], x[3] = 2.0, -2.0, 1e-8, -1e-8
    x[BLOCK], x[2 * BLOCK] = float("inf"), float("nan")
    for n in range(20):
        y = codec.decode(codec.encode(x, 0, n), torch.float32)
        assert y[:2].tolist() == [2, -2] and y[2] > 0 and y[3] < 0 and not y[4:BLOCK].any()
        assert not bool(y[BLOCK].isfinite()) and bool(y[2 * BLOCK].isnan()) and not y[3 * BLOCK :].any()


def step_on_equal_data(model, optimizer):
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((3, 3, 4, 4), 0.1 * step + 0.1)).square().mean().backward()
        optimizer.step()


@ranks(1, 2, 4)
def test_shares_are_rounded_as_by_one_rank():
    """Two and four equal gradients have a mean without rounding."""
    folder = shared_folder()
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())] if hvd.size() > 1 else [hvd.global_process_set]
    for name, options in ((name, options) for name in CODECS for options in ({"shard": "state"}, {"shard": "gradients", "share": "host"})):
        model, single = Model(), Model()
        optimizer = wrap(model, torch.optim.AdamW, state_dtype=name, **options)
        other = wrap(single, torch.optim.AdamW, state_dtype=name, shard="state", process_set=sets[hvd.rank() % len(sets)])
        step_on_equal_data(model, optimizer)
        step_on_equal_data(single, other)
        check_alike(model, single)
        check_states(optimizer.state_dict(), other.state_dict())
        optimizer.save_state(folder)
        check_states(load_plain(folder), other.state_dict())
        resumed = []
        for state in (folder, optimizer.state_dict()):
            after = Model()
            after.load_state_dict(model.state_dict())
            its = wrap(after, torch.optim.AdamW, shard="state", state_dtype=name)
            its.load_state_dict(state)
            train(after, its, 2)
            resumed.append(after)
        train(model, optimizer, 2)
        for after in resumed:
            check_alike(after, model)
    remove(folder)
    for each in sets if hvd.size() > 1 else ():
        hvd.remove_process_set(each)


@ranks(2)
def test_bytes_that_are_kept():
    for name, codec in CODECS.items():
        model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 300))
        optimizer = wrap(model, torch.optim.Adam, shard="gradients", state_dtype=name)
        counts = []
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 300)).square().mean().backward()
            optimizer.step()
            counts.append(rueda.counters()["control_messages"])
        assert counts[4] == counts[2]
        kept = sum(value.nbytes for parts in optimizer.state.values() for key, value in parts.items() if key != "step")
        wanted = 3 * codec.bytes_each * sum(p.numel() for p in model.parameters()) / 2  # amsgrad
        assert wanted <= kept <= 1.01 * wanted, (kept, wanted)


@ranks(2)
def test_a_step_of_many_batches_counts_as_one():
    class Counts(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + 1
            self.calls = getattr(self, "calls", 0) + 1
            return super().step(closure)

    model = Model()
    groups = [{"params": [model.first.weight, model.last.weight]}, {"params": [model.first.bias]}]
    plain = Counts(groups, lr=0.1, momentum=0.9)
    plain.add_param_group({"params": [torch.nn.Parameter(torch.ones(3, dtype=torch.float64))]})
    optimizer = hvd.DistributedOptimizer(plain, shard="state", state_dtype="bf16")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        return backward(model, 0)

    for step in range(3):
        if step == 1:
            assert float(optimizer.step(closure)) > 0
        else:
            closure()
            optimizer.step()
        scheduler.step()
    assert seen == ["before", "after"] * 3
    assert [group["steps"] for group in optimizer.param_groups] == [3] * 3 and optimizer.calls == 3
    assert all(len(group["params"]) == 1 for group in optimizer.param_groups)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@ranks(2)
def test_a_gradient_scaler_and_clipping_work_as_ever():
    models = [Model() for _ in range(4)]
    options = {}, {"shard": "state"}, {"shard": "gradients"}, {"shard": "state", "state_dtype": "bf16"}
    for each, its in zip(models, options):
        optimizer = wrap(each, **its)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = each(torch.full((3, 3, 4, 4), 0.1)).square().mean()
            scaler.scale(loss * (float("inf") if step == 1 and hvd.rank() == 1 else 1)).backward()
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(0.1)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 128.0
    for model in models[1:]:
        for p, q in zip(model.parameters(), models[0].parameters()):
            torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)


@ranks(2)
def test_what_is_no_type_of_state_is_refused():
    with raises(ValueError, "state_dtype='fp4'", "'bf16', 'int8'"):
        wrap(Model(), shard="state", state_dtype="fp4")
    for name in ("state_dtype", "offload"):
        with raises(ValueError, f"{name}= is for shard="):
            wrap(Model(), **{name: "cpu"})


@ranks(2)
def test_the_digits_are_learnt_as_well():
    sys.path.insert(0, str(EXAMPLES))
    from train_digits import load_digits, make_model

    images, labels, *_ = load_digits()
    for kind, settings in ((torch.optim.AdamW, {"lr": 0.004}), (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9})):
        losses = {}
        for name in (None, *CODECS):
            torch.manual_seed(5)
            model = make_model()
            optimizer = wrap(model, optimizer=kind(model.parameters(), **settings), shard="state", state_dtype=name)
            losses[name] = []
            for step in range(60):
                mine = slice(48 * (step % 25) + hvd.rank(), 48 * (step % 25 + 1), 2)
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
                loss.backward()
                optimizer.step()
                losses[name].append(loss.item())
        last = {name: sum(curve[-15:]) / 15 for name, curve in losses.items()}
        assert last[None] < 0.55 * losses[None][0], (kind, last)
        for name in CODECS:
            assert abs(last[name] - last[None]) < 0.15 * last[None] + 0.02, (kind, last)
