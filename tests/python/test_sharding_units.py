"""Which modules are gathered as one, and which parameters are theirs; needs no ranks."""

import pytest
import torch
from expect import raises
from rueda.torch.sharding import _pools
from rueda.torch.sharding._layout import ALIGNED, inner
from rueda.torch.sharding._pools import KEPT, Places, Pool
from rueda.torch.sharding._units import plan_units

nn = torch.nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.gain = nn.Parameter(torch.ones(width))


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 100, bias=False)


def plans(model, units=None):
    names = {p: name for name, p in model.named_parameters(remove_duplicate=True)}
    found = plan_units(model, units)
    assert sorted(names[p] for plan in found for p in plan.parameters) == sorted(names.values())
    return {plan.name: [names[p] for p in plan.parameters] for plan in found}


def of_blocks(found):
    return [name for name in found if name.startswith("blocks")]


def test_blocks_and_large_modules_are_units_and_the_rest_is_the_models():
    found = plans(Model(), 4 * 64 * 64)
    assert list(found) == ["embedding", "blocks.0", "blocks.1", "blocks.2", "(model)", "head"]
    assert found["(model)"] == ["norm.weight", "norm.bias"]
    assert found["blocks.1"] == [f"blocks.1.{name}" for name in ("gain", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")]
    assert list(plans(Model(), 1 << 20)) == ["(model)"]
    assert list(plans(Model(512))) == ["blocks.0", "blocks.1", "blocks.2", "(model)"] or len(plans(Model(512))) == 4
    assert list(plans(nn.Linear(3, 3), 0)) == ["(model)"]


def test_units_that_are_given():
    model = Model()
    assert list(plans(model, [Block])) == ["(model)", "blocks.0", "blocks.1", "blocks.2"]
    assert list(plans(model, Block)) == ["(model)", "blocks.0", "blocks.1", "blocks.2"]
    assert list(plans(model, [model.blocks[1], nn.LayerNorm])) == ["(model)", "blocks.1", "norm"]
    assert list(plans(model, lambda module: isinstance(module, nn.Embedding))) == ["embedding", "(model)"]
    nested = plans(model, [Block, nn.Linear])
    assert nested["blocks.2"] == ["blocks.2.gain"] and nested["blocks.2.mlp.0"] == ["blocks.2.mlp.0.weight", "blocks.2.mlp.0.bias"]
    outer = {plan.name for plan in plan_units(model, [Block, nn.Linear]) if plan.is_outer}
    assert outer == {"(model)", "blocks.0", "blocks.1", "blocks.2"}
    with raises(ValueError, "no module of the model is a Conv2d"):
        plan_units(model, [nn.Conv2d])
    with raises(ValueError, "Linear is no module of the model"):
        plan_units(model, [nn.Linear(1, 1)])


def test_a_parameter_of_several_units_is_a_unit_that_is_gathered_for_each():
    model = Model()
    model.head.weight = model.embedding.weight
    model.blocks[2].mlp[0] = model.blocks[0].mlp[0]  # a module in two places
    found = plans(model, [Block, nn.Embedding, nn.Linear(1, 1).__class__])
    assert found["embedding + head"] == ["embedding.weight"]
    found = plans(model, [Block, nn.Embedding])
    assert found["embedding + (model)"] == ["embedding.weight"]
    assert found["blocks.0 + blocks.2"] == ["blocks.0.mlp.0.weight", "blocks.0.mlp.0.bias"]


def test_pieces_that_are_not_the_same_have_other_forms():
    forms = [inner(number) for number in range(84)]
    assert len(set(forms)) == 84 and inner(84) == forms[0]
    assert all(ALIGNED % (a * b * c) == 0 for a, b, c in forms)


@pytest.fixture(autouse=True)
def memory_of_its_own(monkeypatch):
    """Shared memory needs a job."""
    monkeypatch.setattr(_pools, "room", lambda count, dtype, zeroed: torch.empty(count, dtype=dtype))


def test_a_pool_waits_before_it_grows():
    given = []

    def reclaim():
        if not given:
            return False
        pool.give_back(given.pop(0))
        return True

    pool = Pool(100, reclaim)
    first = [pool.take() for _ in range(KEPT)]
    given += first
    assert pool.take() is first[0]
    given.clear()
    assert pool.take() not in first  # nobody gives any back


class Unit:
    """What `Places` sees of one."""

    nbytes, is_alone, place, is_busy = 10, False, None, False

    def forget_views(self):
        pass


def test_places_are_kept_and_those_in_use_are_left_alone():
    units, places = [Unit() for _ in range(6)], Places(10)

    def gather(unit):
        place = places.of(unit)
        place.holder = unit
        return place

    found = [gather(unit) for unit in units[:4]]
    assert found[0] is found[2] and found[1] is found[3] and found[0] is not found[1]
    assert [gather(unit) for unit in units[:4]] == found
    units[2].is_busy = True  # has the place that the first wants
    found[0].holder = units[2]
    assert gather(units[0]) is found[1]
    units[0].is_busy = True
    assert gather(units[4]) not in found  # both are in use
    units[5].is_alone = True
    alone = gather(units[5])
    assert alone is gather(units[5]) and alone not in found
