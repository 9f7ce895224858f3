"""Checkpoints of DeepSpeed's ZeRO and of torch.save as rueda takes and converts them; files that would run code."""

import os
import subprocess
import sys

import deepspeed_files
import pytest
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _safetensors
from rueda.torch.sharding import _deepspeed, load_plain
from rueda.torch.sharding._converting import main as convert
from test_sharded_checkpoint import remove, shared_folder
from test_sharded_optimizer import check_states
from worlds import ranks

WORLD = "torch"


def check(state, optimizer):
    """Options may be of another order of keys; the rest is the same."""
    check_states(state, optimizer.state_dict())


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_stage_gives_what_the_plain_optimizer_has(stage, size, tmp_path):
    model, optimizer = deepspeed_files.trained()
    deepspeed_files.write(tmp_path / "theirs", stage, size, model, optimizer)
    check(load_plain(tmp_path / "theirs"), optimizer)
    check(load_plain(tmp_path / "theirs" / "global_step3"), optimizer)
    weights = _deepspeed.weights(_deepspeed.folder_at(tmp_path / "theirs"))
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value), name
    assert convert([str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    check(load_plain(tmp_path / "ours" / "optimizer"), optimizer)
    file = _safetensors.File(tmp_path / "ours" / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(file.tensor(name), value), name


@ranks(2, 3)
def test_a_sharded_optimizer_goes_on_where_deepspeed_was():
    for stage in range(4):
        folder = shared_folder()
        model, plain = deepspeed_files.trained()
        if hvd.rank() == 0:
            deepspeed_files.write(folder + "/theirs", stage, 2, model, plain)
        hvd.barrier()
        optimizer = torch.optim.AdamW(model.groups(), lr=0.01)
        names = [(f"module.{name}", p) for name, p in model.named_parameters()]  # as DDP has them
        optimizer = hvd.DistributedOptimizer(optimizer, names, shard="state")
        optimizer.load_state_dict(folder + "/theirs")
        check(optimizer.state_dict(), plain)
        remove(folder)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_no_code_of_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer = deepspeed_files.trained()
    deepspeed_files.write(tmp_path / "theirs", 2, 2, model, optimizer)
    place = tmp_path / "theirs" / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": {"a": Evil()}}, place)
    with raises(ValueError, "zero_pp_rank_1", "posix.mkdir, which could run any code"):
        load_plain(tmp_path / "theirs")
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    assert convert(["evil.pt", "out"]) == 1
    place.write_bytes(b"no archive")
    with raises(ValueError, "zero_pp_rank_1", "was not written by torch.save"):
        load_plain(tmp_path / "theirs")
    place.unlink()
    with raises(ValueError, "1 of the 2 files"):
        load_plain(tmp_path / "theirs")
    (place.parent / "mp_rank_01_model_states.pt").touch()
    with raises(ValueError, "cut over ranks"):
        load_plain(tmp_path / "theirs")
    assert not (tmp_path / "evil").exists()


def test_files_of_torch_save_are_converted(tmp_path, capsys, monkeypatch):
    model, optimizer = deepspeed_files.trained()
    torch.save({"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "both.pt")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save({"epoch": 3}, tmp_path / "nothing.pt")
    command = [sys.executable, "-m", "rueda.migrate", "checkpoint", str(tmp_path / "both.pt"), str(tmp_path / "both")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "state of 4 parameters" in done.stdout, done
    check(load_plain(tmp_path / "both" / "optimizer"), optimizer)
    assert convert([str(tmp_path / "model.pt"), str(tmp_path / "model")]) == 0
    for folder in ("both", "model"):
        file = _safetensors.File(tmp_path / folder / "model.safetensors")
        assert file.forms.keys() == model.state_dict().keys()
        assert torch.equal(file.tensor("last.weight"), model.last.weight)
    assert not (tmp_path / "model" / "optimizer").exists()
    leftover = tmp_path / "model" / "model.safetensors.new"  # of a conversion that was killed
    leftover.write_bytes(b"")
    assert convert([str(tmp_path / "model.pt"), str(tmp_path / "model")]) == 0 and not leftover.exists()
    with monkeypatch.context() as patch:
        patch.setattr(_safetensors.Writer, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert convert([str(tmp_path / "model.pt"), str(tmp_path / "model")]) == 1 and not leftover.exists()
    assert "No space left" in capsys.readouterr().err
    for name, words in (("nothing.pt", "neither a model's"), ("no.pt", "neither a checkpoint")):
        assert convert([str(tmp_path / name), str(tmp_path / "x")]) == 1
        assert words in capsys.readouterr().err
