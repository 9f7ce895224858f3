"""Whole values of parameters that are sharded: gathered, saved, loaded, and made where there is no room for all of them."""

import copy
import gc
import io
import pickle

import rueda.torch as hvd
import torch
from expect import raises
from test_sharded_modules import Block, Model, tokens
from test_sharded_modules import train as train_tokens
from test_sharded_optimizer import Model as Odd
from test_sharded_optimizer import check_alike, check_states
from test_sharded_optimizer import train as train_odd
from test_sharded_optimizer import wrap as wrap_plain
from test_sharded_parameters import check_same, wrap
from worlds import ranks

WORLD = "torch"


@ranks(1, 2, 3)
def test_gathered_parameters_can_be_read_and_changed():
    model, whole = Odd(), Odd()
    optimizer, plain = wrap(model), wrap_plain(whole)
    assert bool(torch.isnan(model.first.weight).all()) and model.first.weight.shape == (13, 20)
    with hvd.gathered(model.last), hvd.gathered(model.last):  # a part, twice
        assert torch.equal(model.last.weight, whole.last.weight)
        assert bool(torch.isnan(model.first.weight).all()) == (hvd.size() > 0)
    with hvd.gathered(optimizer):
        kept = model.first.weight.detach()
        saved = model.state_dict()
        for each in (model, whole):
            torch.nn.init.constant_(each.first.weight, 0.25)
            with torch.no_grad():
                each.image.weight.mul_(2)
                each.last.weight.copy_(torch.arange(39.0).view(3, 13) / 39)
                each.frozen.bias.zero_()
        if hvd.rank() == 0:
            with torch.no_grad():
                model.last.bias.fill_(3.0)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert model.last.bias.tolist() == [3.0] * 3
        seen = model(torch.ones(1, 3, 4, 4)).sum().item()  # forward within
    torch.nn.init.constant_(whole.last.bias, 3.0)
    assert seen == whole(torch.ones(1, 3, 4, 4)).sum().item()
    check_same(model, whole)
    assert bool((kept == 0.25).all()) and bool((saved["first.weight"] == 0.25).all())  # what was taken out stays
    train_odd(model, optimizer, 2)
    train_odd(whole, plain, 2)
    check_same(model, whole)
    with hvd.gathered(whole), hvd.gathered(plain):  # of what is not sharded: nothing to do
        pass
    with raises(TypeError, "module or an optimizer"), hvd.gathered([1]):
        pass


@ranks(1, 2)
def test_parameters_that_are_replaced_within_are_given_up_and_the_others_let_go():
    model, whole = Odd(), Odd()
    optimizer, plain = wrap(model), wrap_plain(whole)
    with raises(RuntimeError, "were replaced (image.weight)", "Change values in place"), hvd.gathered(model):
        model.image.weight.data = torch.zeros_like(model.image.weight)
        torch.nn.init.constant_(model.last.weight, 0.5)
    with raises(RuntimeError, "were replaced (first.weight)"), hvd.gathered(model):
        for layer in (model.first, model.last):
            layer.weight.data = torch.zeros_like(layer.weight)
        raise KeyError
    assert not any(unit.held or unit.is_here for unit in optimizer._gathering.units)
    torch.nn.init.constant_(whole.last.weight, 0.5)
    check_same(model, whole)
    train_odd(model, optimizer, 2)
    train_odd(whole, plain, 2)
    check_same(model, whole)


@ranks(2)
def test_gathering_at_the_wrong_time_is_refused():
    model = Odd()
    optimizer = wrap(model)
    model.last.register_forward_pre_hook(lambda *_: hvd.gathered(model.last).__enter__())
    with raises(RuntimeError, "within the forward or backward of 'last'"):
        train_odd(model, optimizer, 1)
    model.last._forward_pre_hooks.popitem()
    optimizer.zero_grad()
    with hvd.gathered(model), raises(RuntimeError, "step() within hvd.gathered()"):
        train_odd(model, optimizer, 1)
    optimizer.zero_grad()
    with raises(KeyError), hvd.gathered(model):
        raise KeyError
    train_odd(model, optimizer, 1)
    with torch.no_grad():
        model.last.weight.fill_(1.0)
    with raises(RuntimeError, "written to while they were not gathered (last.weight)", "hvd.gathered()"):
        train_odd(model, optimizer, 1)


@ranks(1, 2, 3)
def test_a_models_state_is_whole_and_is_loaded_in_shares():
    whole = Odd()
    plain = wrap_plain(whole, torch.optim.Adam)
    train_odd(whole, plain, 2)
    stream = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimizer": plain.state_dict()}, stream)
    stream.seek(0)
    saved = torch.load(stream)
    model = Odd()
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    optimizer = wrap(model, torch.optim.Adam)
    groups = optimizer.param_groups
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.param_groups is groups
    train_odd(whole, plain, 2, first=2)
    train_odd(model, optimizer, 2, first=2)
    check_same(model, whole)
    found, wanted = model.state_dict(), whole.state_dict()
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert torch.equal(found[key], value) and found[key].stride() == value.stride(), key
    check_states(optimizer.state_dict(), plain.state_dict())
    plain_again = Odd()
    plain_again.load_state_dict(found)
    check_alike(plain_again, whole)
    del saved["model"]["last.bias"]
    saved["model"]["last.weight"] = torch.zeros(2, 2)
    with raises(RuntimeError, "size mismatch for last.weight", "last.bias"):
        model.load_state_dict(saved["model"])
    train_odd(model, optimizer, 1)
    for copier in (copy.deepcopy, pickle.dumps):
        with raises(TypeError, "state_dict()"):
            copier(model)


@ranks(2)
def test_the_first_ranks_values_are_everybodys_from_the_beginning():
    model, whole = Odd(), Odd()
    if hvd.rank() == 1:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)
    optimizer = wrap(model, torch.optim.Adam)
    check_same(model, whole)
    if hvd.rank() == 1:
        optimizer.param_groups[0]["lr"] = 5.0
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)  # passed over
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    train_odd(model, optimizer, 2)
    train_odd(whole, wrap_plain(whole, torch.optim.Adam), 2)
    check_same(model, whole)


class Large(Model):
    """With a module that initialises what is in its child, and buffers."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(12, 2, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(12)
        self.scale = Scale()
        self.how = self.pass_through

    @staticmethod
    def pass_through(model, x):
        x = model.norm(model.attention(x, x, x)[0].transpose(1, 2)).transpose(1, 2) * model.scale.scale
        for block in model.blocks:
            x = block(x)
        return x


class Scale(torch.nn.Module):
    """Cannot initialise itself again."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((12,), 1.5))


@ranks(1, 2)
def test_models_that_are_whole_nowhere():
    whole = Large()
    with hvd.no_init():
        model = Large()
    assert model.head.weight.is_meta and not model.scale.scale.is_meta and not model.norm.running_mean.is_meta
    torch.manual_seed(7 if hvd.rank() == 0 else 8)  # the first rank's numbers count
    most = []
    zeros = torch.zeros

    def counted(*arguments, **options):
        most.append(zeros(*arguments, **options).numel())
        return zeros(*arguments, **options)

    torch.zeros = counted
    try:
        optimizer = wrap(model, torch.optim.Adam, units=[Block])
    finally:
        torch.zeros = zeros
    assert max(most) <= 12 * 36  # one parameter at a time, of a module
    check_same(model, whole)
    assert all(p.is_cpu for p in model.parameters()) and not optimizer.state
    assert torch.initial_seed() == (7 if hvd.rank() == 0 else 8)
    plain = wrap_plain(whole, torch.optim.Adam)
    train_tokens(whole, plain)
    train_tokens(model, optimizer)
    check_same(model, whole)
    check_states(optimizer.state_dict(), plain.state_dict())
    with torch.device("meta"):
        bare = Large()
    with raises(ValueError, "'scale' (Scale)", "no reset_parameters()", "init="):
        wrap(bare)

    def init(module):
        for p in module.parameters(recurse=False):
            torch.nn.init.constant_(p, 0.5)

    optimizer = wrap(bare, torch.optim.Adam, init=init)
    assert not bare.norm.running_mean.is_meta
    with hvd.gathered(bare):
        assert all(bool((p == 0.5).all()) for p in bare.parameters())


@ranks(2)
def test_modules_that_keep_lists_of_their_parameters():
    torch.manual_seed(3)
    whole = torch.nn.LSTM(6, 5, 2)
    with hvd.no_init():
        model = torch.nn.LSTM(6, 5, 2)
    torch.manual_seed(3)
    for each, optimizer in ((model, wrap(model)), (whole, wrap_plain(whole))):
        for step in range(3):
            optimizer.zero_grad()
            each(torch.ones(4, 2, 6) + hvd.rank() + step)[0].square().mean().backward()
            optimizer.step()
    check_same(model, whole)


@ranks(1, 2, 3)
def test_parameters_that_are_loaded_one_by_one():
    whole = Large()
    for tied in (False, True):
        if tied:
            whole.head.weight = whole.embedding.weight
        whole.norm.running_mean.fill_(2.0)
        with hvd.no_init():
            model = Large()
        if tied:
            model.head.weight = model.embedding.weight
        wrap(model, units=[Block], init=lambda module: None)
        taken = []

        def one_by_one(taken=taken):
            for name, tensor in whole.state_dict().items():
                taken.append(name)
                yield name, tensor.double() if tensor.is_floating_point() else tensor

        hvd.load_parameters(model, one_by_one())
        assert taken == list(whole.state_dict())
        check_same(model, whole)
        assert model.norm.running_mean.tolist() == [2.0] * 12
    hvd.load_parameters(model.blocks[1], whole.blocks[0].state_dict())
    with torch.no_grad():
        whole.blocks[1].load_state_dict(whole.blocks[0].state_dict())
    check_same(model, whole)
    some = {"head.bias": torch.ones(9), "head.nose": torch.ones(1)}
    with raises(ValueError, "['head.nose']", "'blocks.0.norm.weight'"):
        hvd.load_parameters(model, some)
    hvd.load_parameters(model, some, strict=False)
    with raises(ValueError, "'head.bias' has the shape (3,), the model's (9,)"):
        hvd.load_parameters(model, {"head.bias": torch.ones(3)})
    other = Large()
    other.head.weight = other.embedding.weight
    hvd.load_parameters(other, whole.state_dict())  # of a model that is not sharded
    check_alike(other, whole)
    hvd.load_parameters(model, whole.state_dict())
    assert torch.isfinite(model(tokens(1))).all()
    gc.collect()
