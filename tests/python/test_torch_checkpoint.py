"""`rueda.torch.checkpoint`: states that one number of ranks saved and another goes on with, bit by bit."""

import collections
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import rueda.torch as hvd
import torch
from expect import eventually, raises
from rueda.torch import _files, _safetensors, checkpoint
from rueda.torch._moving import moved
from rueda.torch.checkpoint import _copying, _marks, _shares, _writing, latest, load, resume, save, wait
from test_sharded_checkpoint import remove, shared_folder
from worlds import ranks, results, run_ranks

WORLD = "torch"


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200), torch.nn.ReLU(), torch.nn.Linear(200, 3))


def training(wrap=lambda optimizer, model: optimizer):
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    state = {"model": net, "optimizer": wrap(optimizer, net), "epoch": 0, "history": []}
    state["scheduler"] = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 7])
    return state


def train(state, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)  # of all ranks alike: their number changes no bit
        state["optimizer"].zero_grad()
        state["model"](torch.randn(8, 300, generator=generator)).square().sum().backward()
        state["optimizer"].step()
        state["scheduler"].step()
        state["epoch"] = step + 1
        state["history"].append((step, float("inf") if step == 0 else 0.1 * step))


def bits(state):
    """All there is in a training, as text."""
    parts = state["model"].state_dict(), state["optimizer"].state_dict(), state["scheduler"].state_dict()
    return repr([state["epoch"], state["history"], *map(plain, parts)])


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    if isinstance(value, dict):
        return [(key, plain(each)) for key, each in value.items() if key != "param_names"]
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def distributed(**options):
    return lambda optimizer, net: hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), **options)


def part_of_a_life():
    """Goes on, if there is something to go on from; saves after each step, and ends while the last is written."""
    torch.set_num_threads(1)  # more would change bits
    state, folder = training(distributed()), os.environ["RUEDA_TEST_FOLDER"]
    first = resume(folder, state) or 0
    last = first + int(os.environ["RUEDA_TEST_SAVES"])
    for step in range(first, last):
        train(state, [step])
        save(folder, state, step=step + 1)
    train(state, range(last, 9))
    return [first, bits(state)]


def test_any_number_of_ranks_goes_on_bit_by_bit(tmp_path):
    ends = set()
    for size, first, saves in ((2, 0, 3), (4, 3, 3), (1, 6, 1)):
        env = {"RUEDA_TEST_FOLDER": str(tmp_path), "RUEDA_TEST_SAVES": str(saves)}
        for begun, ended in results(run_ranks(size, part_of_a_life, env)):
            assert begun == first
            ends.add(ended)
        found = latest(tmp_path)
        assert found.step == first + saves
        assert saves == 0 or len(list(pathlib.Path(found).glob("*.safetensors"))) == size
    assert len(ends) == 1  # which the first have had without an end between


@ranks(1, 2, 3)
def test_sharded_optimizers_go_on_plain_or_sharded():
    folder = shared_folder()
    stages = distributed(), distributed(shard="state"), lambda o, net: distributed(shard="parameters", module=net)(o, net)
    for step, wrap in enumerate(stages):
        saved = training(wrap)
        train(saved, range(2))
        save(folder, saved, step=step, wait=True)
        for other in stages:
            loaded = training(other)
            assert resume(folder, loaded) == step
            assert bits(loaded) == bits(saved)
            train(loaded, range(2, 3))  # its hooks and groups are those of before
        hvd.barrier()
    remove(folder)


@ranks(2)
def test_each_rank_writes_about_half_and_buffers_are_the_first_ranks():
    folder, net = shared_folder(), model()
    net[1].running_mean.fill_(hvd.rank())
    large = torch.arange(1 << 20)
    save(folder, {"net": net, "large": large, "rank": hvd.rank()}, step=5, wait=True)
    manifest = json.loads((pathlib.Path(latest(folder)) / "manifest.json").read_text())["manifest"]
    sizes = [file["bytes"] for file in manifest["files"]]
    assert max(sizes) - min(sizes) < 10_000 and sum(sizes) > 8 << 20
    state = {"net": model(), "large": torch.zeros_like(large), "rank": None}
    assert load(folder, state) == 5
    assert torch.equal(state["large"], large) and state["rank"] == 0
    assert torch.equal(state["net"][1].running_mean, torch.zeros(200))
    remove(folder)


@ranks(2)
def test_what_one_rank_cannot_do_all_are_told():
    folder, rank = shared_folder(), hvd.rank()
    tensor = {"tensor": torch.zeros(5)}
    with raises(ValueError, "rank 0 says step=1, rank 1 step=2"):
        save(folder, tensor, step=1 + rank)
    with raises(ValueError, "ranks have different states"):
        save(folder, {"tensor": torch.zeros(5 + rank)}, step=1)
    with raises(ValueError if rank == 1 else RuntimeError, "step=-1: expected a whole number"):
        save(folder, tensor, step=1 if rank == 0 else -1)
    with raises(FileNotFoundError if rank == 1 else RuntimeError, "all ranks need one folder"):
        save(os.path.join(folder, str(rank)), tensor, step=1)
    with raises(ValueError if rank == 1 else RuntimeError, "a whole number, 0 or more, below 2**63"):
        save(folder, tensor, step=1 if rank == 0 else 10**2000)
    long = os.path.join(folder, *["\N{CJK UNIFIED IDEOGRAPH-6A21}" * 80] * 3)  # more than there is room for in what ranks say
    with raises(FileNotFoundError if rank == 1 else RuntimeError, "all ranks need one folder" if rank == 1 else "rank 1 failed"):
        save(long if rank == 0 else os.path.join(long, "x"), tensor, step=1)
    save(long, tensor, step=2, wait=True)
    if rank == 0:
        next(pathlib.Path(latest(long)).glob("*-of-*")).unlink()
    hvd.barrier()
    with pytest.warns(RuntimeWarning), raises(RuntimeError, "is whole", "is missing" if rank == 0 else ""):
        resume(long, tensor)
    assert latest(folder) is None and resume(folder, tensor) is None
    remove(folder)


@ranks(2)
def test_a_failure_behind_training_is_told_to_all_at_the_next_call():
    folder, rank = shared_folder(), hvd.rank()
    state = {"tensor": torch.arange(1 << 16)}
    save(folder, state, step=1, wait=True)
    for tell in (wait, lambda: save(folder, state, step=3)):
        synced, os.fsync = os.fsync, fail if rank == 1 else os.fsync
        try:
            save(folder, state, step=2)
            with raises(RuntimeError, "the save of step 2 to ", "planted"):
                tell()
        finally:
            os.fsync = synced
        wait()  # nothing is left to be told
        assert latest(folder).step == 1 and resume(folder, state) == 1
    save(folder, state, step=4, wait=True)
    assert latest(folder).step == 4
    marked, _marks.written = _marks.written, lambda *_: None
    try:
        save(folder, state, step=5, timeout=0.05)
        with raises(RuntimeError, "ranks 1 have not written their parts within 0.05 s"):
            wait()
    finally:
        _marks.written = marked
    assert latest(folder).step == 4
    remove(folder)


@ranks(2)
def test_a_copy_that_fails_is_told_as_well():
    folder, rank = shared_folder(), hvd.rank()
    copied, _copying._copy = _copying._copy, fail if rank == 1 else _copying._copy
    save(folder, {"tensor": torch.arange(1 << 16)}, step=2)
    _copying._copy = copied
    with raises(RuntimeError, "rank 1 failed" if rank == 0 else "planted"):
        wait()
    assert latest(folder) is None
    remove(folder)


def fail(*_):
    raise OSError(5, "planted")


def test_a_copy_that_is_interrupted_is_no_checkpoint(tmp_path, monkeypatch):
    def interrupted(targets, sources, _):
        targets[0].copy_(sources[0])
        raise KeyboardInterrupt

    state = {"a": torch.ones(1 << 16), "b": torch.ones(1 << 16)}
    save(tmp_path, state, step=1, wait=True)
    with monkeypatch.context() as patch:
        patch.setattr(_copying, "_copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, state, step=2)
    with raises(RuntimeError, "the save of step 2", "KeyboardInterrupt"):
        wait()
    assert resume(tmp_path, state) == 1


def test_a_copy_stays_until_it_is_written_though_somebody_stopped_waiting(tmp_path, monkeypatch):
    may_write, joined, calls = threading.Event(), _writing.Writing.join, []

    def join(writing):
        calls.append(writing)
        if len(calls) == 1:
            raise KeyboardInterrupt
        may_write.set()
        joined(writing)

    def write_all(*arguments):
        may_write.wait()
        _files.write_all(*arguments)

    monkeypatch.setattr(_writing.Writing, "join", join)
    monkeypatch.setattr(_writing, "write_all", write_all)
    state = {"x": torch.full((1 << 16,), 1)}
    try:
        save(tmp_path, state, step=1, keep=None)
        with pytest.raises(KeyboardInterrupt):
            wait()
        state["x"].fill_(2)
        save(tmp_path, state, step=2, keep=None, wait=True)
    finally:
        may_write.set()
    for step, name in enumerate(sorted(path.name for path in tmp_path.glob("*-step-*")), 1):
        assert load(tmp_path / name, state) == step and state["x"].eq(step).all()


def test_states_that_change_between_saves(tmp_path):
    """What is kept of a save for the next is of that state alone."""
    a, b = torch.arange(1 << 10), torch.arange(1 << 8) + 0.5
    states = [{"a": a, "b": b}, {"b": b, "a": a}, {"a": a.view(32, 32), "b": b}, {"a": b, "b": a}, {"a": a}, {"a": a + 1, "b": -b}]
    for step, state in enumerate(states):
        save(tmp_path, state, step=step, wait=True)
        loaded = {name: torch.zeros_like(value) for name, value in state.items()}
        assert load(tmp_path, loaded) == step
        assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_what_is_saved_is_what_was_there_whatever_follows(tmp_path):
    state = {"x": torch.zeros(1 << 20), "strided": torch.arange(1 << 17).view(256, 512).t()}
    strided = state["strided"].clone()
    for step in range(3):
        state["x"].fill_(step)
        save(tmp_path, state, step=step)
        assert step == 0 or latest(tmp_path).step >= step - 1  # the one before has ended
        state["x"].fill_(-1)
        state["strided"].zero_()
        wait()
        assert load(tmp_path, state) == step
        assert state["x"].eq(step).all() and torch.equal(state["strided"], strided)


def test_keep(tmp_path):
    state = {"x": torch.zeros(3)}
    for step, (keep, left) in enumerate([(None, 1), (None, 2), (None, 3), (2, 2), (2, 2), (1, 1)]):
        save(tmp_path, state, step=step, keep=keep, wait=True)
        steps = sorted(int(path.name.split("-")[2]) for path in tmp_path.glob("*-step-*"))
        assert steps == list(range(step + 1 - left, step + 1))
    save(tmp_path, state, step=2, wait=True)  # somebody went back
    assert latest(tmp_path).step == 2


def test_plain_values_come_back_as_they_were(tmp_path):
    values = {
        "numbers": [1, -2.5, float("inf"), True, None, "text"],
        "nested": {"a": (1, {2: {3, 4}}), 5: collections.Counter("abca")},
        "random": torch.get_rng_state(),
        "of_lists": [torch.arange(3), {"t": torch.ones(2, dtype=torch.bfloat16)}],
    }
    save(tmp_path, values, step=0, wait=True)
    loaded = {"numbers": 0, "nested": 0, "of_lists": 0, "random": torch.zeros_like(values["random"])}
    load(tmp_path, loaded)
    assert repr(loaded["nested"]) == repr(values["nested"]) and loaded["numbers"] == values["numbers"]
    assert plain(loaded["of_lists"]) == plain(values["of_lists"]) and plain(loaded["random"]) == plain(values["random"])


def test_optimizers_of_groups_and_without_a_model(tmp_path):
    def make(order):
        net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
        parameters = dict(net.named_parameters())
        groups = [{"params": [parameters[n] for n in order], "lr": 0.5}, {"params": [parameters["b.bias"]], "momentum": 0.5}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return net, optimizer

    net, optimizer = make(["a.weight", "a.bias", "b.weight"])
    sum(net[k](torch.ones(2, 3)).sum() * (i + 1) for i, k in enumerate("ab")).backward()
    optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.25
    save(tmp_path, {"net": net, "optimizer": optimizer}, step=1, wait=True)
    other, its = make(["b.weight", "a.weight", "a.bias"])  # the names say which is which
    load(tmp_path, {"net": other, "optimizer": its})
    assert its.param_groups[1]["lr"] == 0.25
    for name, p in net.named_parameters():
        q = other.get_parameter(name)
        assert torch.equal(p, q) and torch.equal(optimizer.state[p]["momentum_buffer"], its.state[q]["momentum_buffer"])
    with raises(ValueError, "parameter groups of [4] parameters here, and had [3, 1]"):
        load(tmp_path, {"net": other, "optimizer": torch.optim.SGD(other.parameters(), lr=1)})
    save(tmp_path, {"optimizer": optimizer}, step=2, wait=True)
    _, its = make(["a.weight", "a.bias", "b.weight"])
    load(tmp_path, {"optimizer": its})
    assert plain(its.state_dict()) == plain(optimizer.state_dict())


def test_all_that_differs_is_named_at_once_and_nothing_is_touched(tmp_path):
    save(tmp_path, {"net": model(), "x": torch.zeros(3), "n": 1}, step=1, wait=True)
    net = torch.nn.Sequential(torch.nn.Linear(300, 201), torch.nn.Linear(200, 3))
    net[1].bias.data = net[1].bias.data.double()
    before = plain(net.state_dict())
    state = {"net": net, "x": torch.ones(3, dtype=torch.int32), "y": 1, "n": torch.zeros(1)}
    with pytest.raises(ValueError) as error:
        load(tmp_path, state)
    for text in (
        "net.0.weight is torch.float32 [201, 300] here, and was torch.float32 [200, 300]",
        "net.1.bias is torch.float64 [3] here, and was torch.float32 [200]",
        "net.3.weight is in the checkpoint, and not here",
        "x is torch.int32 [3] here, and was torch.float32 [3]",
        "'y' is not in the checkpoint, which has 'net', 'x', 'n'",
        "'n' is a tensor here, and was a value",
    ):
        assert text in str(error.value)
    assert plain(net.state_dict()) == before and state["x"].eq(1).all()


class Refuses:
    def __init__(self):
        self.loaded = []

    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        self.loaded.append(state)
        raise ValueError("not this one")


def test_an_owner_that_refuses_its_part_leaves_all_as_they_were(tmp_path):
    saved = training()
    train(saved, range(2))
    save(tmp_path, {**saved, "z": Refuses()}, step=1, wait=True)
    fresh = training()
    before = bits(fresh)
    with raises(ValueError, "not this one"):
        load(tmp_path, {**fresh, "z": Refuses()})
    assert bits(fresh) == before


@pytest.mark.parametrize(
    "state, text",
    [
        ([], "the state is a mapping"),
        ({}, "the state is empty"),
        ({1: 2}, "the state has the name 1"),
        ({"f": print}, "'f' is a builtin_function_or_method"),
        ({"f": {"g": [object()]}}, "'f.g.0' is a object"),
        ({"f": {1.5: 2}}, "has the key 1.5"),
        ({"c": torch.zeros(2, dtype=torch.complex64)}, "'c' is torch.complex64"),
        ({"s": torch.zeros(2, 2).to_sparse()}, "'s' is a tensor of layout torch.sparse_coo"),
        ({"lazy": torch.nn.LazyLinear(3)}, "has no shape yet"),
        ({"a": {"b.c": torch.zeros(1)}, "a.b": {"c": torch.zeros(1)}}, "two tensors of the state are called 'a.b.c'"),
    ],
)
def test_what_cannot_be_saved(tmp_path, state, text):
    with raises((TypeError, ValueError), text):
        save(tmp_path, state, step=1)
    assert list(tmp_path.iterdir()) == []


def test_wrong_places_and_numbers(tmp_path):
    state = {"x": torch.zeros(1)}
    assert latest(tmp_path / "none") is None and resume(tmp_path / "none", state) is None
    for wrong in (tmp_path, tmp_path / "none"):
        with raises(FileNotFoundError, "is no checkpoint, nor a folder with one"):
            load(wrong, state)
    for keep in (0, True, 1.5):
        with raises(ValueError, "keep="):
            save(tmp_path, state, step=1, keep=keep)
    for folder in ("/proc/rueda", __file__):
        with raises(OSError, folder):
            save(folder, state, step=1)


def test_files_can_be_read_without_rueda(tmp_path):
    saved = {"net": model(), "x": torch.arange(5, dtype=torch.int16)}
    save(tmp_path, saved, step=1, wait=True)
    (file,) = pathlib.Path(latest(tmp_path)).glob("*.safetensors")
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, end = json.loads(data[8 : 8 + length]), 0
    kinds = {"F32": np.float32, "I64": np.int64, "I16": np.int16}
    expected = {"x": saved["x"], **{f"net.{key}": value for key, value in saved["net"].state_dict().items()}}
    assert set(header) == {"__metadata__", *expected}
    for name, tensor in expected.items():
        begin, last = header[name]["data_offsets"]
        values = np.frombuffer(data[8 + length :][begin:last], kinds[header[name]["dtype"]]).reshape(header[name]["shape"])
        assert np.array_equal(values, tensor.numpy())
        end = max(end, last)
    assert 8 + length + end == len(data)
    safetensors = pytest.importorskip("safetensors.torch")
    assert all(torch.equal(value, expected[name]) for name, value in safetensors.load_file(file).items())


def test_shares_are_every_element_once_and_balanced():
    generator = torch.Generator().manual_seed(0)
    for n in range(300):
        count = int(torch.randint(0, 12, (), generator=generator))
        most = [10, 100_000, 3_000_000][n % 3]
        lengths = torch.randint(0, most, (count,), generator=generator).tolist()
        forms = {f"t{i}": ((torch.float32, torch.int8)[i % 2], (length,)) for i, length in enumerate(lengths)}
        firsts = {name for name in forms if n % 4 == 0 and name < "t3"}
        ranks = 1 + n % 9
        plan = _shares.shares(forms, firsts, ranks)
        size = {name: _safetensors.itemsize(dtype) * shape[0] for name, (dtype, shape) in forms.items()}
        seen = collections.defaultdict(list)
        for rank, parts in enumerate(plan):
            for name, first, last in parts:
                seen[name].append((first, last))
                assert name not in firsts or rank == 0
        for name, (_, shape) in forms.items():
            at = 0
            for first, last in seen[name]:
                assert first == at and (last > first or shape[0] == 0)
                at = last
            assert at == shape[0]
        bytes_of = [sum((last - first) * _safetensors.itemsize(forms[name][0]) for name, first, last in parts) for parts in plan]
        ideal = sum(size.values()) / ranks
        assert max(bytes_of) <= max(ideal, sum(size[name] for name in firsts)) + (1 << 16) + 128


def test_a_process_that_ends_at_once_has_saved(tmp_path):
    program = (
        "import sys, torch; from rueda.torch import checkpoint\n"
        "checkpoint.save(sys.argv[1], {'x': torch.arange(1 << 20)}, step=3)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, timeout=120)
    state = {"x": torch.zeros(1 << 20, dtype=torch.int64)}
    assert load(tmp_path, state) == 3 and torch.equal(state["x"], torch.arange(1 << 20))


def leaves_while_the_other_writes():
    """Rank 0 has left the job, and looks for rank 1's mark again, before rank 1 writes."""
    hvd.init()
    rank, left = hvd.rank(), pathlib.Path(os.environ["RUEDA_TEST_FOLDER"], "left")
    looked, written = threading.Event(), threading.Event()
    listdir, write_all = os.listdir, _writing.write_all

    def looks(folder):
        if threading.current_thread().name == "rueda-checkpoint":
            (written if left.exists() else looked).set()
        return listdir(folder)

    def writes(*arguments):
        eventually(left.exists)
        write_all(*arguments)

    if rank == 0:
        os.listdir = looks
    else:
        _writing.write_all = writes
    save(os.environ["RUEDA_TEST_FOLDER"], {"tensor": torch.arange(9)}, step=1)
    assert rank == 1 or looked.wait(60)
    hvd.shutdown()
    if rank == 0:
        left.touch()
        assert written.wait(60)
    return {"rank": rank}


def test_a_rank_that_has_left_the_job_waits_for_the_others_parts(tmp_path):
    results(run_ranks(2, leaves_while_the_other_writes, {"RUEDA_TEST_FOLDER": str(tmp_path)}, manual=True))
    assert latest(tmp_path).step == 1


def test_a_failure_that_nobody_asks_for_is_printed_at_the_end(tmp_path):
    program = (
        "import os, sys, torch; from rueda.torch import checkpoint\n"
        "def fail(_): raise OSError(5, 'planted')\n"
        "os.fsync = fail\n"
        "checkpoint.save(sys.argv[1], {'x': torch.arange(9)}, step=3)\n"
        "checkpoint._saving._last.join()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, tmp_path], timeout=120, capture_output=True, text=True)
    assert "the save of step 3 to" in ended.stderr and "planted" in ended.stderr


def test_the_module_is_still_activation_checkpointing():
    assert hvd.checkpoint is checkpoint and hvd.checkpoint(torch.sin, torch.zeros(1)).item() == 0
    net = model()
    assert hvd.checkpoint(net) is net


def test_plain_bytes_are_copied_without_pytorch_and_all_else_by_it():
    complex_ = torch.complex(torch.rand(5), torch.rand(5))
    plain = [torch.rand(7, 3), torch.rand(1 << 19), torch.empty(0), torch.tensor(3), torch.rand(4, 6)[1:3]]
    other = [torch.rand(6, 4).t(), complex_.conj(), complex_.conj().imag, torch.rand(10)[::2]]
    other.append(torch.rand(4).as_subclass(type("Subclass", (torch.Tensor,), {})))  # may have no memory of its own
    sources = [*plain, *other]
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    left = [source for target, source in zip(targets, sources) if not moved(target, source)]
    assert [id(each) for each in left] == [id(each) for each in other]
    assert all(torch.equal(target, source) for target, source in zip(targets, plain))
    assert not moved(torch.zeros(6, 4).t(), torch.rand(4, 6))
    _copying._copy(targets, sources, False)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources))


def test_large_ones_are_left_to_pytorch_where_it_has_more_than_two_threads():
    target, source, threads = torch.empty(16 << 20, dtype=torch.uint8), torch.ones(16 << 20, dtype=torch.uint8), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert not moved(target, source) and moved(target[:-1], source[:-1])
        torch.set_num_threads(2)
        assert moved(target, source) and target.all()
    finally:
        torch.set_num_threads(threads)
