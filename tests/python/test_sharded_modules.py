"""Modules whose parameters are sharded, used in every way that modules are used."""

import dataclasses

import rueda.torch as hvd
import torch
import torch.nn.functional as F
from expect import raises
from rueda.torch.sharding._layout import ALIGNED
from test_sharded_optimizer import wrap as wrap_plain
from test_sharded_parameters import check_close, check_same, wrap
from torch.utils.checkpoint import checkpoint
from worlds import ranks

WORLD = "torch"
WIDTH = 12


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """``how``: calls the blocks one after another."""

    def __init__(self, how=None, blocks=5):
        super().__init__()
        torch.manual_seed(7)
        self.embedding = torch.nn.Embedding(9, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(WIDTH, 9)
        self.how = how or (lambda model, x: [x := block(x) for block in model.blocks][-1])

    def forward(self, tokens):
        return self.head(self.how(self, self.embedding(tokens)))


def tokens(step):
    return torch.randint(0, 9, (2, 4), generator=torch.Generator().manual_seed(10 * step + hvd.rank()))


def train(model, optimizer, steps=3, call=None):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model if call is None else call)(tokens(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_hand(model):
    """Without a DistributedOptimizer."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)

    def reduce(*_):
        for p in model.parameters():
            hvd.allreduce_(p.grad)

    optimizer.register_step_pre_hook(reduce)
    return optimizer


def compare(make, check=check_same, call=lambda model: None, reference=lambda model: wrap_plain(model, torch.optim.Adam), **options):
    """The same training without shards and with; ``make()`` gives the model, ``call(model)`` what is called."""
    whole, model = make(), make()
    losses = train(whole, reference(whole), call=call(whole))
    optimizer = wrap(model, torch.optim.Adam, **{"units": [Block, torch.nn.Embedding], **options})
    found = train(model, optimizer, call=call(model))
    check(model, whole)
    if check is check_same:
        assert found == losses, (found, losses)
    return model, optimizer


def is_tidy(optimizer):
    units = optimizer._gathering.units
    assert not any(u.is_here or u.uses or u.live is not None or u.awaited or u.owes for u in units), [(u.name, u.__dict__) for u in units]
    return True


@ranks(1, 2, 3)
def test_blocks():
    model, optimizer = compare(Model)
    assert is_tidy(optimizer)
    assert len(optimizer._gathering._places.buffers) == (2 if hvd.size() > 1 else 0)


@ranks(2)
def test_activation_checkpoints():
    def each(reentrant):
        return lambda model, x: [x := checkpoint(block, x, use_reentrant=reentrant) for block in model.blocks][-1]

    def three_at_a_time(reentrant):
        def how(model, x):
            for first in (0, 3):
                part = model.blocks[first : first + 3]
                x = checkpoint(lambda y, part=part: [y := block(y) for block in part][-1], x, use_reentrant=reentrant)
            return x

        return how

    for reentrant in (False, True):
        for how in (each(reentrant), three_at_a_time(reentrant)):
            _, optimizer = compare(lambda how=how: Model(how))
            assert is_tidy(optimizer)
            assert len(optimizer._gathering._places.buffers) <= 4
    for reentrant in (False, True):  # around the units and in them

        def make(reentrant=reentrant):
            class Within(Block):
                def forward(self, x):
                    return checkpoint(super().forward, x, use_reentrant=reentrant)

            model = Model()
            for n in range(len(model.blocks)):
                within = Within()
                within.load_state_dict(model.blocks[n].state_dict())
                model.blocks[n] = within
            return model

        _, optimizer = compare(make)
        assert is_tidy(optimizer)


@ranks(2)
def test_modules_that_are_used_twice_and_tied_ones():
    def twice(model, x):
        for block in (*model.blocks, *model.blocks[1:3]):
            x = block(x)
        return x

    def tied():
        model = Model()
        model.head.weight = model.embedding.weight
        model.blocks[3].up.weight = model.blocks[1].up.weight
        return model

    def tied_and_twice():
        model = tied()
        model.how = twice
        return model

    def tied_and_recomputed():
        model = tied()
        model.how = lambda model, x: [x := checkpoint(block, x, use_reentrant=True) for block in model.blocks][-1]
        return model

    for make in (lambda: Model(twice), tied, tied_and_twice):
        for units in ([Block, torch.nn.Embedding, torch.nn.Linear], 0, [Block]):
            _, optimizer = compare(make, units=units)
            assert is_tidy(optimizer)
    # Other stages refuse this: a parameter gets gradients twice in a backward, which are reduced one by one.
    _, optimizer = compare(tied_and_recomputed, check_close, reference=by_hand)
    assert is_tidy(optimizer)


@ranks(2)
def test_units_within_units():
    _, optimizer = compare(Model, units=[Block, torch.nn.Linear, torch.nn.Embedding])
    assert [unit.is_outer for unit in optimizer._gathering.units] == [False] + [True, False, False] * 5 + [False]
    assert is_tidy(optimizer)


@ranks(2)
def test_parameters_that_are_used_by_other_modules_than_their_own():
    class Tied(Model):
        def forward(self, tokens):
            return F.linear(self.how(self, self.embedding(tokens)), self.embedding.weight, self.head.bias)

    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0, 1, 8 * WIDTH).view(8, WIDTH))

        def forward(self, count):
            return self.weight[:count]  # a view

    class Itself(Positions):
        def forward(self, count):
            return self.weight

    def with_positions(kind):
        model = Model(lambda model, x: [x := block(x * model.positions(4)[:4]) for block in model.blocks][-1])
        model.positions = kind()
        return model

    class UsedAgain(Tied):
        """Autograd has saved a weight of its own forward, before it is gathered for the model around."""

        def __init__(self):
            super().__init__(lambda model, x: F.linear(inner(model, model.between(x)), model.between.weight))
            self.between = torch.nn.Linear(WIDTH, WIDTH)
            inner = Model().how

    for kind in (Tied, UsedAgain, lambda: with_positions(Positions), lambda: with_positions(Itself)):
        _, optimizer = compare(kind, units=lambda m: isinstance(m, (Block, torch.nn.Embedding, torch.nn.Linear, Positions)))
        assert is_tidy(optimizer)
    @dataclasses.dataclass
    class Result:
        rows: torch.Tensor

    class Hidden(Positions):
        def forward(self, count):
            return Result(self.weight[:count])

    alone = Hidden()
    wrap(alone)
    with raises(RuntimeError, "Hidden gives out a view", "clone()"):
        alone(3)
    attention = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)  # uses its out_proj's weight itself
    whole = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    whole.load_state_dict(attention.state_dict())
    hvd.broadcast_parameters(whole.state_dict(), root_rank=0)
    for each, optimizer in ((whole, wrap_plain(whole)), (attention, wrap(attention, units=[torch.nn.Linear]))):
        for step in range(3):
            optimizer.zero_grad()
            x = torch.ones(2, 3, WIDTH) + step + hvd.rank()
            each(x, x, x)[0].square().mean().backward()
            optimizer.step()
    check_same(attention, whole)


@ranks(2)
def test_results_of_every_kind():
    @dataclasses.dataclass
    class Result:
        hidden: torch.Tensor
        more: dict

    class Wrapping(Block):
        def forward(self, x):
            y = super().forward(x)
            return Result(None, {"a": [y, (x, 3)], "b": {"none": None}})

    def make():
        model = Model(lambda model, x: [x := block(x).more["a"][0] for block in model.blocks][-1])
        for block in model.blocks:
            block.__class__ = Wrapping
        return model

    _, optimizer = compare(make)
    assert is_tidy(optimizer)


@ranks(2)
def test_results_that_are_changed_in_place():
    def make():
        def how(model, x):
            for block in model.blocks:
                y = model.between(x)  # a view, of a tensor of two dimensions
                y += x
                x = block(y).mul_(0.5)
            return x

        model = Model(how)
        model.between = torch.nn.Linear(WIDTH, WIDTH)
        return model

    _, optimizer = compare(make, units=[Block, torch.nn.Linear, torch.nn.Embedding])
    assert is_tidy(optimizer)


@ranks(2)
def test_two_models_one_after_the_other():
    def run(models, optimizers):
        for step in range(3):
            for trained, optimizer in zip(models, optimizers):
                for each in optimizers:
                    each.zero_grad()
                x = models[0](tokens(step))
                y = models[1].how(models[1], x[..., :8].repeat(1, 1, 2)[..., :WIDTH])
                (y.square().mean() * (1 if trained is models[0] else -1)).backward()
                optimizer.step()

    whole, models = [Model(), Model()], [Model(), Model()]
    run(whole, [wrap_plain(m, backward_passes_per_step=2) for m in whole])
    run(models, [wrap(m, units=[Block]) for m in models])
    for one, other in zip(models, whole):
        check_same(one, other)


@ranks(2)
def test_a_parameter_that_was_not_gathered_is_named():
    class Methods(Model):
        def loss(self, tokens):
            return self.head(F.linear(self.embedding(tokens), self.head.weight.t() @ self.head.weight))

    model = Methods()
    optimizer = wrap(model, units=[Block])
    with raises(RuntimeError, "head.", " was used when it was not gathered", "Call the model, not a method of it"):
        model.loss(tokens(0)).sum().backward()
    optimizer.zero_grad()
    with hvd.gathered(model):
        model.loss(tokens(0)).sum().backward()
    optimizer.step()
    with hvd.gathered(model):
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@ranks(2)
def test_frozen_parameters_and_few_that_are_trained_beside_them():
    class Adapted(torch.nn.Module):
        """The trained ones are done in backward before the frozen one has been used."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.a, self.b = inner, torch.nn.Linear(WIDTH, 2, bias=False), torch.nn.Linear(2, 2 * WIDTH, bias=False)
            inner.requires_grad_(False)

        def forward(self, x):
            return self.inner(x) + self.b(self.a(x))

    def make():
        model = Model()
        model.requires_grad_(False)
        for block in model.blocks:
            block.up = Adapted(block.up)
        model.head.requires_grad_(True)
        model.blocks[0].requires_grad_(False)
        return model

    model, optimizer = compare(make)
    assert is_tidy(optimizer)
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == 5 * ALIGNED
    kept = sum(piece.shard.numel() for unit in optimizer._gathering.units for piece in unit.pieces)
    assert kept <= sum(p.numel() for p in model.parameters()) / hvd.size() + 12 * ALIGNED


@ranks(2)
def test_evaluation_between_steps_and_without_gradients():
    whole, model = Model(), Model()
    for each, optimizer in ((whole, wrap_plain(whole)), (model, wrap(model, units=[Block]))):
        seen = []
        with torch.inference_mode():
            seen.append(each(tokens(7)).sum().item())
        for step in range(3):
            optimizer.zero_grad()
            each.eval()
            with torch.no_grad():
                seen += [each(tokens(9)).sum().item(), each.blocks[2](torch.ones(1, WIDTH)).sum().item()]
            with torch.inference_mode():
                seen.append(each(tokens(8)).sum().item())
            each.train()
            loss = each(tokens(step)).square().mean()
            with torch.no_grad():
                seen.append(each(tokens(step + 20)).sum().item())
            loss.backward()
            optimizer.step()
        each.seen = seen
    assert model.seen == whole.seen
    check_same(model, whole)
    assert is_tidy(optimizer)


@ranks(2)
def test_exceptions_in_forward_and_in_backward():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("in backward")

    def make():
        model = Model()
        model.failing = None
        inner = model.how

        def how(model, x):
            if model.failing == "backward":
                x = Failing.apply(x)
            x = inner(model, x)
            if model.failing == "forward":
                raise KeyError("in forward")
            return x

        model.how = how
        block = model.blocks[2]
        original = block.forward

        def forward(x):
            if model.failing in ("block", "interrupt"):
                raise KeyError("in block") if model.failing == "block" else KeyboardInterrupt
            return original(x)

        block.forward = forward
        return model

    whole, model = make(), make()
    train(whole, wrap_plain(whole))
    optimizer = wrap(model, units=[Block])
    for step in range(3):
        for failing in ("forward", "block", "backward", "interrupt"):
            model.failing = failing
            optimizer.zero_grad()
            with raises((KeyError, KeyboardInterrupt)):
                model(tokens(step)).sum().backward()
            model.failing = None
        optimizer.zero_grad()
        model(tokens(step)).square().mean().backward()
        optimizer.step()
    check_same(model, whole)
    assert is_tidy(optimizer)


@ranks(2)
def test_what_autograd_has_saved_is_never_wrong():
    """A tensor that leaves its module by the back door is used in backward when the unit is gathered no more."""

    class Secret(Block):
        def forward(self, x):
            self.aside = self.up(x)
            return super().forward(x)

    def use(model):
        x = torch.ones(2, WIDTH, requires_grad=True)
        for block in model.blocks:
            x = block(x)
        return model.blocks[0].aside.square().mean()

    model = Model()
    for block in model.blocks:
        block.__class__ = Secret
    optimizer = wrap(model, units=[Block])
    with raises(RuntimeError, "modified by an inplace operation"):
        use(model).backward()
    optimizer.zero_grad()
    train(model, optimizer, 1)  # goes on


@ranks(2)
def test_modules_with_hooks_and_forms_of_their_own():
    def make():
        model = Model()
        torch.nn.utils.parametrizations.weight_norm(model.blocks[0].up)
        torch.nn.utils.weight_norm(model.blocks[1].up)
        model.lstm = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        model.how = lambda model, x: [x := block(model.lstm(x)[0]) for block in model.blocks][-1]
        return model

    _, optimizer = compare(make, units=[Block, torch.nn.LSTM])
    assert is_tidy(optimizer)


@ranks(2)
def test_autocast():
    def call(model):
        def run(tokens):
            with torch.autocast("cpu", torch.bfloat16):
                return model(tokens)

        return run

    _, optimizer = compare(Model, call=call)
    assert is_tidy(optimizer)


@ranks(2)
def test_compiled_models():
    for compiled in (lambda model: torch.compile(model, backend="aot_eager"),):
        torch.compiler.reset()
        _, optimizer = compare(Model, check_close, call=compiled)
        assert is_tidy(optimizer)

    def blocks_compiled():
        model = Model()
        return model

    def call(model):
        torch.compiler.reset()
        for block in model.blocks:
            block.compile(backend="aot_eager")
        return model

    _, optimizer = compare(blocks_compiled, check_close, call=call)
    assert is_tidy(optimizer)
    torch.compiler.reset()
