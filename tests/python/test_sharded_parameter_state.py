"""The state of a model whose parameters are sharded: kept small, on disk, saved in shares, loaded by other stages."""

import pathlib
import tempfile

import rueda.torch as hvd
import torch
from rueda.torch.sharding import load_plain
from test_sharded_optimizer import Model, check_states, train
from test_sharded_optimizer import wrap as wrap_plain
from test_sharded_parameters import check_same, wrap
from worlds import ranks

WORLD = "torch"


def folder():
    """The same on all ranks."""
    return pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp(prefix="test-of-rueda-") if hvd.rank() == 0 else None))


@ranks(1, 2, 3)
def test_state_that_is_saved_in_shares_goes_to_every_stage():
    place = folder()
    whole, model = Model(), Model()
    plain, optimizer = wrap_plain(whole, torch.optim.Adam), wrap(model, torch.optim.Adam)
    train(whole, plain, 2)
    train(model, optimizer, 2)
    optimizer.save_state(place / "ours")
    check_states(load_plain(place / "ours"), plain.state_dict())
    other = Model()
    stage = wrap_plain(other, torch.optim.Adam, shard="gradients")
    stage.load_state(place / "ours")
    check_states(stage.state_dict(), plain.state_dict())
    stage.save_state(place / "theirs")
    again = Model()
    resumed = wrap(again, torch.optim.Adam, units=[torch.nn.Conv2d])
    again.load_state_dict(model.state_dict())
    resumed.load_state(place / "theirs")
    train(again, resumed, 2, first=2)
    train(whole, plain, 2, first=2)
    check_same(again, whole)


@ranks(2)
def test_state_in_a_file_and_in_fewer_bytes():
    whole = Model()
    train(whole, wrap_plain(whole, torch.optim.Adam), 3)
    for options in ({"offload": folder()}, {"state_dtype": "bf16"}, {"state_dtype": "int8", "offload": folder()}):
        model = Model()
        optimizer = wrap(model, torch.optim.Adam, **options)
        train(model, optimizer, 3)
        with hvd.gathered(model):
            for p, q in zip(model.parameters(), whole.parameters()):
                exact = "state_dtype" not in options
                assert torch.equal(p, q) if exact else torch.allclose(p, q, atol=0.02), options
        saved, values = optimizer.state_dict(), model.state_dict()
        again = Model()
        resumed = wrap(again, torch.optim.Adam, **options)
        again.load_state_dict(values)
        resumed.load_state_dict(saved)
        train(model, optimizer, 2, first=3)
        train(again, resumed, 2, first=3)
        with hvd.gathered(model):
            check_same(again, model)
