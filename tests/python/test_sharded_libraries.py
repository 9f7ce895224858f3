"""Sharded optimizers with other libraries: torchao's 8-bit optimizers, and what DeepSpeed itself writes.

They need not be installed: what is not there is left out. `scripts/libraries` installs them and runs this file.
"""

import importlib.util
import os
import subprocess
import sys

import deepspeed_files
import pytest
import rueda.torch as hvd
import torch
from rueda.torch.sharding import _deepspeed, load_plain
from rueda.torch.sharding._converting import main as convert
from test_sharded_checkpoint import remove, shared_folder
from test_sharded_optimizer import check_states, wrap
from worlds import run_ranks

NAMES = "AdamW8bit", "Adam8bit", "AdamW4bit", "AdamFp8"


def model_of(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.Tanh(), torch.nn.Linear(96, 96))


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        x = torch.randn(4, 96, generator=torch.Generator().manual_seed(step))  # the same on all ranks
        model(x).square().mean().backward()
        optimizer.step()


def check_close(one, other):
    """What was quantised twice: a block's largest may have moved to the next code."""
    for number, parts in other["state"].items():
        for key, value in parts.items():
            torch.testing.assert_close(one["state"][number][key], value, rtol=0.2, atol=0.02 * float(value.abs().max()))


def eight_bit_optimizers():
    import torchao.optim

    hvd.init()
    rank, folder = hvd.rank(), shared_folder()
    alone = [hvd.add_process_set([0]), hvd.add_process_set([1])][rank]
    for name in NAMES:
        kind = getattr(torchao.optim, name)
        models = [model_of() for _ in range(3)]
        optimizer, single, outside = (
            wrap(model, optimizer=kind(model.parameters(), lr=1e-2), **options)
            for model, options in zip(
                models,
                ({"shard": "state"}, {"shard": "state", "process_set": alone}, {"shard": "gradients", "offload": folder}),
            )
        )
        for model, its in zip(models, (optimizer, single, outside)):
            train(model, its, 3)
        (kept,) = {type(v).__name__ for parts in optimizer.state.values() for k, v in parts.items() if k != "step"}
        assert kept.startswith("OptimState"), kept
        for model in models[1:]:  # on one rank and two, the blocks are the same
            for p, q in zip(model.parameters(), models[0].parameters()):
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        whole = torch.optim.AdamW(model_of().parameters())
        whole.load_state_dict(optimizer.state_dict())  # in float32
        optimizer.save_state(folder + "/saved")
        check_states(load_plain(folder + "/saved"), optimizer.state_dict())
        for state in (folder + "/saved", optimizer.state_dict()):
            again = model_of()
            again.load_state_dict(models[0].state_dict())
            resumed = wrap(again, optimizer=kind(again.parameters(), lr=1.0), shard="gradients")
            resumed.load_state_dict(state)
            assert {type(v).__name__ for parts in resumed.state.values() for k, v in parts.items() if k != "step"} == {kept}
            check_close(resumed.state_dict(), optimizer.state_dict())
        train(models[0], optimizer, 1, 3)
        train(again, resumed, 1, 3)
        for p, q in zip(again.parameters(), models[0].parameters()):
            torch.testing.assert_close(p, q, rtol=0.02, atol=2e-3)  # a fifth of a step
        hvd.barrier()
    remove(folder)
    hvd.shutdown()
    return {"rank": rank}


@pytest.mark.slow
def test_torchaos_optimizers_are_sharded_as_they_are():
    pytest.importorskip("torchao.optim")
    outcome = run_ranks(2, eight_bit_optimizers, manual=True, env={"OMP_NUM_THREADS": "1"})
    assert outcome.code == 0, (outcome.output, outcome.reports)


@pytest.mark.slow
def test_what_deepspeed_writes(tmp_path):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    folder = os.path.dirname(sys.executable)
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", deepspeed_files.__file__, str(tmp_path)]
    done = subprocess.run(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        env={
            **os.environ,
            "PATH": folder + os.pathsep + os.environ["PATH"],
            "DS_ACCELERATOR": "cpu",
            "TORCH_EXTENSIONS_DIR": os.path.join(os.path.dirname(folder), "torch_extensions"),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stdout
    model, optimizer = deepspeed_files.trained()
    for stage in range(4):
        theirs = tmp_path / str(stage)
        assert convert([str(theirs), str(tmp_path / f"ours{stage}")]) == 0
        for path in (theirs, tmp_path / f"ours{stage}" / "optimizer"):
            state = load_plain(path)
            for number, parts in optimizer.state_dict()["state"].items():
                for key, value in parts.items():
                    torch.testing.assert_close(state["state"][number][key], value, rtol=1e-5, atol=1e-8)
            assert [group["lr"] for group in state["param_groups"]] == [0.01, 0.05]
        for name, value in _deepspeed.weights(_deepspeed.folder_at(theirs)).items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6)
