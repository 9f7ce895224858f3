"""DistributedOptimizer with shard="parameters": the steps of whole parameters, of which each rank keeps a share."""

import gc
import weakref

import pytest
import rueda
import rueda.torch as hvd
import torch
from expect import is_shared, raises
from rueda.torch.sharding._elementwise import KNOWN
from test_sharded_optimizer import Model, backward, batch, check_alike, check_states, train
from test_sharded_optimizer import wrap as wrap_plain
from torch.utils.checkpoint import checkpoint
from worlds import ranks

WORLD = "torch"


def wrap(model, kind=torch.optim.SGD, units=0, **options):
    """Each layer a unit, however small."""
    return wrap_plain(model, kind, shard="parameters", module=model, units=units, **options)


def check_same(model, whole):
    with hvd.gathered(model):
        check_alike(model, whole)


def check_close(model, whole):
    with hvd.gathered(model):
        for p, q in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@ranks(1, 2, 3)
def test_every_optimizer_steps_as_without_shards():
    for kind in KNOWN:
        whole, model = Model(), Model()
        plain, optimizer = wrap_plain(whole, kind), wrap(model, kind)
        train(whole, plain, 3)
        train(model, optimizer, 3)
        check_same(model, whole)
        check_states(optimizer.state_dict(), plain.state_dict())
        assert type(optimizer).__name__ == kind.__name__ and isinstance(optimizer, kind)


@ranks(2)
def test_a_parameter_without_dimensions_alone():
    for kind in KNOWN:
        for stage in ("state", "gradients", "parameters"):
            whole, model = (torch.nn.Module() for _ in range(2))
            for each in (whole, model):
                each.scale = torch.nn.Parameter(torch.tensor(1.5))
                each.forward = lambda x, each=each: each.scale * x
            options = {"module": model} if stage == "parameters" else {}
            runs = (whole, wrap_plain(whole, kind)), (model, wrap_plain(model, kind, shard=stage, **options))
            for each, optimizer in runs:
                for step in range(2):
                    optimizer.zero_grad()
                    each(torch.tensor(2.0 + hvd.rank() + step)).backward()
                    optimizer.step()
            check_same(model, whole)
            check_states(runs[1][1].state_dict(), runs[0][1].state_dict())


@ranks(2)
def test_any_cut_into_units_gives_the_same():
    whole = Model()
    train(whole, wrap_plain(whole, torch.optim.Adam), 3)
    for units in (None, 0, 500, [], [torch.nn.Linear], lambda m: isinstance(m, torch.nn.Conv2d)):
        model = Model()
        train(model, wrap(model, torch.optim.Adam, units=units), 3)
        check_same(model, whole)
    model = Model()
    train(model, wrap(model, torch.optim.Adam, units=[model.first, model.image]), 3)
    check_same(model, whole)


@ranks(2, 3)
def test_groups_with_options_of_their_own_and_schedulers():
    def make(model, wrapper):
        weights = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        plain = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.05}], lr=0.01)
        before = torch.optim.lr_scheduler.StepLR(plain, 2)
        optimizer = wrapper(model, optimizer=plain)
        after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return optimizer, before, after

    whole, model = Model(), Model()
    runs = [(whole, *make(whole, wrap_plain)), (model, *make(model, wrap))]
    for step in range(5):
        for each, optimizer, *schedulers in runs:
            optimizer.zero_grad()
            backward(each, step)
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
    check_same(model, whole)


@ranks(2, 3)
def test_passes_add_up():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole, backward_passes_per_step=2)), (model, wrap(model, backward_passes_per_step=2))):
        for step in range(3):
            optimizer.zero_grad()
            backward(each, 2 * step)
            backward(each, 2 * step + 1, short=step == 1)  # a module that is not used
            optimizer.step()
    check_close(model, whole)
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole)), (model, wrap(model))):
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 1)
            with optimizer.no_sync():
                backward(each, step)
                backward(each, step + 10)
            backward(each, step + 20, short=step == 1)
            optimizer.step()
    check_close(model, whole)


@ranks(2, 3)
def test_a_pass_waits_for_what_the_one_before_still_sends():
    """One unit has all parameters, so the next pass's gradients come to where those of the last one are."""
    model = torch.nn.Sequential(torch.nn.Linear(300, 300, bias=False), torch.nn.Linear(300, 1, bias=False))
    optimizer = wrap(model, torch.optim.SGD, units=None)
    graphs = [(model(torch.ones(1, 300)) * 2.0**n).sum() for n in range(12)]
    expected = None
    for n, graph in enumerate(graphs):
        graph.backward()
        if n == 0:
            with optimizer.skip_synchronize():
                optimizer.synchronize()
            expected = [group["params"][0].grad * (2.0**12 - 1) for group in vars(optimizer)["param_groups"]]
    optimizer.synchronize()
    for group, sums in zip(vars(optimizer)["param_groups"], expected):
        torch.testing.assert_close(group["params"][0].grad, sums, rtol=1e-5, atol=0)
    optimizer.zero_grad()


@ranks(2)
def test_two_graphs_at_a_time_and_one_that_is_used_twice():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole, backward_passes_per_step=4)), (model, wrap(model))):
        for step in range(3):
            optimizer.zero_grad()
            losses = [each(batch(hvd.rank(), 5 * step + n)).square().mean() for n in range(2)]
            losses[0].backward(retain_graph=True)
            losses[1].backward()
            losses[0].backward()
            each(batch(hvd.rank(), 3)).sum()  # whose backward never comes
            backward(each, 9)
            optimizer.step()
    check_close(model, whole)


@ranks(2)
def test_modules_that_no_rank_uses_in_a_step_get_a_gradient_of_zero():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole, torch.optim.AdamW)), (model, wrap(model, torch.optim.AdamW))):
        for step in range(4):
            optimizer.zero_grad()
            backward(each, step, short=step % 2 == 1)
            optimizer.step()
    check_same(model, whole)


@ranks(2)
def test_parameters_that_only_some_ranks_use():
    class Choosing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.layers = torch.nn.ModuleList(self.Layer() for _ in range(4))

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.left, self.right = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

            def forward(self, x, left):
                return torch.tanh(self.left(x) if left else self.right(x))

        def forward(self, x, left):
            for n, layer in enumerate(self.layers):
                x = layer(x, left == (n % 2))
            return x

    whole, model = Choosing(), Choosing()
    for each, optimizer in ((whole, wrap_plain(whole)), (model, wrap(model))):
        for step in range(4):
            optimizer.zero_grad()
            each(torch.ones(2, 6) + step, left=step % 2 == hvd.rank()).square().mean().backward()
            optimizer.step()
    check_same(model, whole)


class Uneven(torch.nn.Module):
    """A rank that is told so leaves parameters of every unit unused, also of the one around all others."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x, is_short):
            x = torch.tanh(self.up(self.norm(x)))
            return x if is_short else x + self.down(x)

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList(self.Layer() for _ in range(4))
        self.is_reentrant = None  # of checkpoints of two layers
        self.first, self.last, self.extra = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, is_short, times=1):
        def two(x, layers):
            return layers[1](layers[0](x, is_short), is_short)

        x = self.first(x)
        for layers in [self.layers[:2], self.layers[2:]] * times:
            x = two(x, layers) if self.is_reentrant is None else checkpoint(two, x, layers, use_reentrant=self.is_reentrant)
        return self.last(x) if is_short else self.last(x) * self.extra(x)


@ranks(2, 3)
def test_units_of_several_groups_of_which_some_ranks_use_a_part():
    def decaying(model):
        groups = [[p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False)]
        return torch.optim.AdamW([{"params": groups[1], "weight_decay": 0.0}, {"params": groups[0]}], lr=0.01, weight_decay=0.1)

    def inputs(step):
        return torch.ones(2, 6) + step + hvd.rank() + torch.arange(6.0)

    def once(model, optimizer, step, is_short):
        model(inputs(step), is_short).square().mean().backward()

    def with_layers_twice(model, optimizer, step, is_short):
        model(inputs(step), is_short, times=2).square().mean().backward()

    def two_graphs(model, optimizer, step, is_short):
        losses = [model(inputs(step + n), is_short).square().mean() for n in range(3)]
        for loss in losses:
            loss.backward()

    def two_forwards_in_one_graph(model, optimizer, step, is_short):
        (model(inputs(step), is_short) * model(inputs(step + 1), not is_short)).square().mean().backward()

    def beside_one_without_backward(model, optimizer, step, is_short):
        kept = model(inputs(step), is_short)
        once(model, optimizer, step, is_short)
        assert kept.requires_grad

    def within_gathered(model, optimizer, step, is_short):
        with hvd.gathered(model):
            x = model.first(inputs(step)).tanh()
            for layer in model.layers:
                parts = (layer.up, layer.down) if is_short else (layer.down, layer.up)  # who is complete first differs
                for part in parts:
                    x = part(x).tanh()
            (x if is_short else model.extra(x)).square().mean().backward()

    def with_checkpoints(is_reentrant):
        def train(model, optimizer, step, is_short):
            model.is_reentrant = is_reentrant
            once(model, optimizer, step, is_short)

        return train

    ways = [once, with_layers_twice, two_graphs, two_forwards_in_one_graph, beside_one_without_backward, within_gathered]
    for way in ways + [with_checkpoints(is_reentrant) for is_reentrant in (False, True)]:
        whole, model = Uneven(), Uneven()
        sharded = wrap(model, optimizer=decaying(model), units=[Uneven.Layer])
        assert [len(unit.pieces) for unit in sharded._gathering.units] == [2] * 5
        for each, optimizer in ((whole, wrap_plain(whole, optimizer=decaying(whole), backward_passes_per_step=9)), (model, sharded)):
            for step in range(4):
                optimizer.zero_grad()
                way(each, optimizer, step, is_short=step % hvd.size() == hvd.rank())
                optimizer.step()
        check_close(model, whole)
        assert len(sharded._gathering._pool.buffers) == 2, way
        assert not any(unit.owes or unit.awaited for unit in sharded._gathering.units), way


@ranks(2, 3)
def test_clipping_by_the_norm_of_all_shares():
    for norm_type in (2.0, 1.0, float("inf")):
        whole, model = Model(), Model()
        plain, optimizer = wrap_plain(whole), wrap(model)
        for each, its in ((whole, plain), (model, optimizer)):
            its.zero_grad()
            backward(each, 0)
        norms = [its.clip_grad_norm_(0.01, norm_type) for its in (plain, optimizer)]
        torch.testing.assert_close(norms[1], norms[0])
        plain.step()
        optimizer.step()
        check_close(model, whole)


@ranks(2)
def test_a_gradient_scaler_skips_the_step_on_all_ranks():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole)), (model, wrap(model))):
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
    check_close(model, whole)


@ranks(2)
def test_a_closure_and_gradients_that_are_synchronised_by_hand():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole)), (model, wrap(model))):

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
        optimizer.zero_grad()
        if each is model:
            backward(each, 2)
            optimizer.zero_grad()  # a batch that is passed over
        backward(each, 3)
        optimizer.step()
    check_same(model, whole)


@ranks(2)
def test_a_step_that_fails_in_the_middle_is_seen_by_the_next_forward():
    def fail(*_):
        raise KeyError("after the update")

    model = Model()
    optimizer = wrap(model)
    train(model, optimizer, 1)
    before = model.state_dict()
    hook = optimizer.register_step_post_hook(fail)
    optimizer.zero_grad()
    backward(model, 1)
    with raises(KeyError, "after the update"):
        optimizer.step()
    hook.remove()
    whole = Model()
    found = model.state_dict()
    whole.load_state_dict(found)
    assert not torch.equal(found["first.weight"], before["first.weight"])
    assert torch.equal(model(batch(0, 0)), whole(batch(0, 0)))
    optimizer.zero_grad()
    backward(model, 2)
    optimizer.step()


@ranks(3)
def test_a_process_set_shards_among_its_members():
    members = hvd.add_process_set([0, 2])
    whole, model = Model(), Model()
    train(whole, wrap_plain(whole, process_set=members), 2)
    optimizer = wrap(model, process_set=members)
    train(model, optimizer, 2)
    check_same(model, whole)
    assert len(optimizer.state_dict()["state"]) == 7
    hvd.remove_process_set(members)


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

    whole, model = make(), make()
    run(whole, wrap_plain(whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1), sparse_as_dense=True))
    model = make()
    run(model, wrap(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
    check_same(model, whole)


@ranks(1, 2)
def test_a_parameter_without_elements_and_ones_that_are_left_alone():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.empty = torch.nn.Parameter(torch.zeros(0, 3))
            self.full = torch.nn.Parameter(torch.ones(4))
            self.count = torch.nn.Parameter(torch.arange(3), requires_grad=False)  # no number of this kind is sharded
            self.other = torch.nn.Parameter(torch.ones(2))  # not the optimizer's

        def forward(self):
            return self.empty.sum() + (self.full * self.count.sum()).sum() + self.other.sum()

    model = Odd()
    optimizer = torch.optim.SGD([model.empty, model.full], lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, shard="parameters", module=model)
    model().backward()
    optimizer.step()
    assert model.count.tolist() == [0, 1, 2] and model.other.tolist() == [1, 1] and model.other.grad.tolist() == [1, 1]
    with hvd.gathered(model):
        assert model.empty.shape == (0, 3) and model.full.tolist() == [-0.5] * 4
    assert bool(torch.isnan(model.full).all()) and model.full.shape == (4,)


def mlp(layers=8, width=200):
    torch.manual_seed(5)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


@ranks(2, 4)
def test_memory_is_that_of_a_share_and_of_two_units():
    model, x = mlp(), torch.randn(2, 200)
    total = sum(p.numel() for p in model.parameters())
    unit = sum(p.numel() for p in model[0].parameters())
    optimizer = wrap(model, optimizer=torch.optim.Adam(model.parameters()))
    most = 0

    def look(*_):
        nonlocal most
        most = max(most, numbers_of(model, optimizer))

    def numbers_of(model, optimizer):
        """In storages of values and gradients that something of the model or of what shards it looks at."""
        tensors = [t for o in gc.get_objects() if isinstance(o, torch.Tensor) for t in (o, o.grad) if t is not None and t.is_leaf]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if id(t) not in before}
        return sum(storages.values()) // 4

    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    state = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
    assert state <= 1.05 * 2 * total / hvd.size()
    before = {id(o) for o in gc.get_objects() if isinstance(o, torch.Tensor)} - {id(t) for t in ours(optimizer, model)}
    for layer in model:
        layer.register_forward_hook(look)
        layer.register_full_backward_hook(look)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    look()
    # Shares of values and gradients; two units of values and two of gradients.
    assert most <= 1.05 * (2 * total / hvd.size() + 4 * unit), (most, total, unit)
    assert most >= 2 * total / hvd.size() + 2 * unit


def ours(optimizer, model):
    """Tensors that hold values and gradients."""
    passes = optimizer._gathering
    yield from model.parameters()
    for unit in passes.units:
        for piece in unit.pieces:
            yield from (piece.shard, piece.sum)
    for place in passes._places.buffers:
        yield place.memory
    for buffer in passes._pool._free:
        yield buffer.memory


@ranks(2)
def test_steady_steps_send_no_control_message_and_copy_nothing_to_be_reduced():
    model, x = mlp(), torch.randn(2, 200)
    optimizer = wrap(model, torch.optim.Adam)
    counts, places = [], []
    for _ in range(6):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        counts.append(rueda.counters())
        places.append({t.data_ptr() for t in ours(optimizer, model)} - {p.data_ptr() for p in model.parameters()})
    before, after = counts[2], counts[5]
    assert after["control_messages"] == before["control_messages"]
    reduced = after["bytes_reduced"] - before["bytes_reduced"]
    assert reduced > 0 and after["bytes_in_place"] - before["bytes_in_place"] >= reduced
    assert places[2] == places[5]  # the same memory
    assert len(places[5]) > 2 * len(model) and all(is_shared(place) for place in places[5])


@ranks(2)
def test_the_next_unit_is_on_its_way_while_one_works():
    model, x = mlp(), torch.randn(2, 200)
    optimizer = wrap(model)
    seen = []

    def look(number):
        units = optimizer._gathering.units
        return lambda *_: seen.append([u.number for u in units if u.is_loaded and abs(u.number - number) == 1])

    for number, layer in enumerate(model):
        layer.register_forward_hook(look(number))
    for step in range(3):
        seen.clear()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step:
            assert all(number + 1 in found for number, found in enumerate(seen[:7])), seen


@ranks(2)
def test_memory_comes_back_with_the_model():
    model = Model()
    optimizer = wrap(model)
    train(model, optimizer, 1)
    gone = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.first.weight), weakref.ref(optimizer._gathering)
    del optimizer
    gc.collect()
    assert torch.isfinite(model(batch(0, 0))).all()  # a model without its optimizer still has values
    del model
    gc.collect()
    assert [each() for each in gone] == [None] * 4


@ranks(2)
def test_a_later_optimizer_takes_over():
    whole, model = Model(), Model()
    for each, wrapper in ((whole, wrap_plain), (model, wrap)):
        first = wrapper(each)
        train(each, first, 1)
        second = wrapper(each, torch.optim.Adam)
        train(each, second, 2, first=1)
    check_same(model, whole)
    with raises(RuntimeError, "later DistributedOptimizer"):
        first.step()
    for options in ({"shard": "state"}, {}):
        last = wrap_plain(model, torch.optim.Adam, **options)
        assert torch.isfinite(model.first.weight).all()
        train(model, last, 1)
        hvd.check_replicas(model)
        wrap(model)
