"""State of sharded optimizers on disk: written by each rank, read by any number of ranks and by plain optimizers."""

import copy
import json
import os
import pathlib
import shutil
import signal
import tempfile

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _safetensors
from rueda.torch.sharding import _checkpoint, _saving, load_plain
from rueda.torch.sharding._sources import Plain
from test_sharded_optimizer import STAGES, Model, check_alike, check_states, train, wrap
from worlds import ranks, run_ranks

WORLD = "torch"
KINDS = torch.optim.SGD, torch.optim.Adam, torch.optim.ASGD, torch.optim.Adagrad


def shared_folder():
    """A new one, the same on all ranks."""
    return hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)


def remove(folder):
    hvd.barrier()
    if hvd.rank() == 0:
        shutil.rmtree(folder)


@ranks(1, 2, 3)
def test_what_was_saved_goes_on_sharded_and_plain():
    folder = shared_folder()
    for kind in KINDS:
        for stage, options in ((STAGES[0], {}), (STAGES[1], {"share": "host"})):
            whole, model = Model(), Model()
            plain, optimizer = wrap(whole, kind), wrap(model, kind, shard=stage, **options)
            for each, its in ((whole, plain), (model, optimizer)):
                its.param_groups[0]["lr"] = 0.02
                train(each, its, 2)
            optimizer.save_state(folder)
            check_states(load_plain(folder), optimizer.state_dict())
            check_states(load_plain(folder), plain.state_dict())
            again = Model()
            again.load_state_dict(model.state_dict())
            resumed = wrap(again, kind, shard=STAGES[0])
            groups = resumed.param_groups
            resumed.load_state(folder)
            assert resumed.param_groups is groups and groups[0]["lr"] == 0.02
            check_states(resumed.state_dict(), optimizer.state_dict())
            train(whole, plain, 2, first=2)
            train(again, resumed, 2, first=2)
            check_alike(again, whole)
    remove(folder)


def grow_and_shrink():
    """Saves on two ranks, goes on one and on three, as process sets of one job."""
    hvd.init()
    rank, folder = hvd.rank(), shared_folder()
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0]), hvd.global_process_set]
    states = []
    for n, members in enumerate(sets):
        if members.included():
            model = Model()
            optimizer = wrap(model, torch.optim.Adam, shard=STAGES[n % 2], process_set=members)
            if n:
                optimizer.load_state(folder)
            else:
                train(model, optimizer, 2)
            states.append(optimizer.state_dict())
            optimizer.save_state(folder)
            files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
            assert len(files) == members.size(), files
        hvd.barrier()
    for state in states:
        check_states(load_plain(folder), state)
    remove(folder)
    hvd.shutdown()
    return {"rank": rank}


def test_another_number_of_ranks_loads_it():
    outcome = run_ranks(3, grow_and_shrink, manual=True)
    assert outcome.code == 0, (outcome.output, outcome.reports)


@ranks(2)
def test_each_rank_writes_its_share():
    folder = shared_folder()
    model = torch.nn.Linear(300, 700)
    optimizer = wrap(model, torch.optim.Adam, shard="state")
    optimizer.zero_grad()
    model(torch.ones(2, 300)).square().mean().backward()
    optimizer.step()
    optimizer.save_state(folder)
    hvd.barrier()
    sizes = [path.stat().st_size for path in pathlib.Path(folder).glob("*.safetensors")]
    wanted = 3 * 4 * (300 * 700 + 700)  # amsgrad
    assert len(sizes) == 2 and all(abs(size - wanted / 2) < 5000 for size in sizes), sizes
    index = json.loads((pathlib.Path(folder) / "index.json").read_text())
    assert [p["name"] for p in index["parameters"]] == ["weight", "bias"]
    remove(folder)


@ranks(2, 3)
def test_parameters_of_one_element_keep_what_belongs_to_each_element():
    for kind in (torch.optim.Adam, torch.optim.Adagrad):
        models = [torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(2.0))])]
        models += [torch.nn.ParameterList([torch.nn.Parameter(p.detach().clone()) for p in models[0]]) for _ in range(2)]
        folder = shared_folder()

        def step(model, optimizer):
            optimizer.zero_grad()
            (model[0] * 3 + model[1].square()).backward()
            optimizer.step()

        whole, one, other = models
        plain, optimizer, resumed = wrap(whole, kind), wrap(one, kind, shard="state"), wrap(other, kind, shard="state")
        step(whole, plain)
        step(one, optimizer)
        check_states(optimizer.state_dict(), plain.state_dict())
        optimizer.save_state(folder)
        other.load_state_dict(one.state_dict())
        for load in (resumed.load_state_dict, resumed.load_state):
            load(plain.state_dict() if load == resumed.load_state_dict else folder)
        step(whole, plain)
        step(other, resumed)
        check_alike(other, whole)
        remove(folder)


@ranks(2)
def test_an_error_of_one_rank_is_one_of_all_and_leaves_the_last_save():
    folder, model = shared_folder(), Model()
    optimizer = wrap(model, torch.optim.Adam, shard="state")
    train(model, optimizer, 1)
    optimizer.save_state(folder)
    before = load_plain(folder)
    train(model, optimizer, 1, first=1)
    original = _safetensors.Writer.write
    if hvd.rank() == 1:

        def fail(writer, tensor):
            raise OSError(28, "No space left on device")

        _safetensors.Writer.write = fail
    try:
        with raises((OSError, RuntimeError), "No space left" if hvd.rank() == 1 else "rank 1 failed"):
            optimizer.save_state(folder)
    finally:
        _safetensors.Writer.write = original
    hvd.barrier()
    check_states(load_plain(folder), before)
    assert len(os.listdir(folder)) == 3, os.listdir(folder)
    optimizer.param_groups[0]["something"] = object()
    with raises(ValueError if hvd.rank() == 0 else RuntimeError, "something" if hvd.rank() == 0 else "rank 0 failed"):
        optimizer.save_state(folder)
    del optimizer.param_groups[0]["something"]
    hvd.barrier()
    check_states(load_plain(folder), before)
    state = optimizer.state_dict()
    hvd.barrier()
    if hvd.rank() == 1:  # one file that only one rank's share needs may be cut off; here it is cut for all
        for path in pathlib.Path(folder).glob("*-00001.safetensors"):
            os.truncate(path, 100)
    hvd.barrier()
    with raises((ValueError, RuntimeError)):
        optimizer.load_state(folder)
    check_states(optimizer.state_dict(), state)
    with raises((FileNotFoundError, RuntimeError), "has no state of an optimizer"):
        optimizer.load_state(folder + "/nowhere")
    other = torch.nn.Linear(4, 4)
    with raises(ValueError, "parameter group of 9"):
        wrap(other, torch.optim.Adam, shard="state").load_state_dict(before)
    remove(folder)


@ranks(1, 2)
def test_frozen_parameters_keep_their_values_in_whatever_order_they_lie():
    folder, model = shared_folder(), Model()
    torch.manual_seed(4)
    frozen = torch.nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([*model.parameters(), frozen], lr=0.1)
    frozen.grad = torch.randn_like(frozen)
    optimizer.step()
    frozen.grad = None
    frozen.requires_grad_(False)
    state = optimizer.state[frozen]
    state["exp_avg_sq"] = state["exp_avg_sq"].contiguous()  # two orders in one state
    optimizer = hvd.DistributedOptimizer(optimizer, shard="state")
    train(model, optimizer, 1)
    optimizer.save_state(folder)
    expected = in_one_order(optimizer.state_dict())
    check_states(load_plain(folder), expected)
    optimizer.load_state(folder)
    check_states(optimizer.state_dict(), expected)
    remove(folder)


def in_one_order(state_dict):
    for values in state_dict["state"].values():
        images = {key: v for key, v in values.items() if isinstance(v, torch.Tensor) and v.dim() == 4}
        values.update({key: v.contiguous(memory_format=torch.channels_last) for key, v in images.items()})
    return state_dict


def test_a_plain_state_of_several_orders_is_saved_and_one_of_several_shapes_refused(tmp_path):
    weight = torch.nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.randn(2, 3, 4, 5)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["exp_avg_sq"] = state["state"][0]["exp_avg_sq"].contiguous()
    _saving.save_whole(tmp_path, Plain(state))
    check_states(load_plain(tmp_path), in_one_order(copy.deepcopy(state)))
    state["state"][0]["row_var"] = torch.ones(2, 1, 4, 1)  # as Adafactor has it
    state["param_groups"][0]["param_names"] = ["conv.weight"]
    with raises(ValueError, "conv.weight", "'row_var'", "(2, 1, 4, 1)"):
        _saving.save_whole(tmp_path / "other", Plain(state))


@ranks(2)
def test_what_fails_when_the_index_is_there_undoes_nothing():
    folder, model = shared_folder(), Model()
    optimizer = wrap(model, torch.optim.Adam, shard="state")
    for step, name in enumerate(("_sync_folder", "_remove_others")):
        train(model, optimizer, 1, first=step)
        original = getattr(_checkpoint, name)

        def fail(*arguments):
            raise OSError(5, "Input/output error")

        setattr(_checkpoint, name, fail)
        try:
            optimizer.save_state(folder)
        finally:
            setattr(_checkpoint, name, original)
        check_states(load_plain(folder), optimizer.state_dict())
        hvd.barrier()
    assert len(os.listdir(folder)) == 5, os.listdir(folder)
    hvd.barrier()
    optimizer.save_state(folder)
    assert hvd.rank() or len(os.listdir(folder)) == 3, os.listdir(folder)
    check_states(load_plain(folder), optimizer.state_dict())
    remove(folder)


def killed_in_a_save():
    hvd.init()
    rank, folder, model = hvd.rank(), shared_folder(), Model()
    optimizer = wrap(model, torch.optim.Adam, shard="state")
    train(model, optimizer, 1)
    optimizer.save_state(folder)
    before = load_plain(folder)
    train(model, optimizer, 1, first=1)
    if rank == 1:
        _safetensors.Writer.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.save_state(folder)
    check_states(load_plain(folder), before)
    shutil.rmtree(folder)
    return {"rank": rank}


def test_a_rank_that_dies_in_a_save_leaves_the_last_one():
    outcome = run_ranks(2, killed_in_a_save, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    assert all("result" in line for line in outcome.reports[0].values()), outcome.reports


def test_files_are_those_of_safetensors(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.arange(4, dtype=torch.int8),
        "d": torch.tensor(2.5, dtype=torch.float64),
        "e": torch.empty(0, 3),
        "f": torch.tensor([True, False]),
    }
    _safetensors.save(tmp_path / "ours", tensors)
    library.save_file(tensors, tmp_path / "theirs")
    read = library.load_file(tmp_path / "ours")
    file = _safetensors.File(tmp_path / "theirs")
    for name, tensor in tensors.items():
        for other in (read[name], file.tensor(name)):
            assert other.dtype == tensor.dtype and torch.equal(other, tensor), name


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "file"
    _safetensors.save(path, {"a": torch.arange(100.0)})
    whole = path.read_bytes()
    assert torch.equal(_safetensors.File(path).read("a", 10, 20), torch.arange(10.0, 20.0))
    for n, damaged in enumerate(
        (b"", whole[:5], whole[:50], whole[:-1], b"\xff" * 8 + whole[8:], whole.replace(b"F32", b"F99"), whole.replace(b"400", b"404"))
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="safetensors"):
            print(n, _safetensors.File(path).forms)
