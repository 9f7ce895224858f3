"""`rueda.torch.checkpoint` when saves are killed, when system calls fail, and when files are damaged: a whole one loads."""

import errno
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from checkpoint_faults import Faults
from expect import raises
from rueda.torch.checkpoint import Damaged, latest, load, resume, save, wait
from worlds import HERE



def state(step):
    return {"a": torch.full((5000,), step), "b": torch.full((3,), float(step)), "step": step}


def loaded_step(folder):
    """Of the newest that loads; all of it is of one save."""
    loaded = state(-1)
    step = resume(folder, loaded)
    assert loaded["step"] == step and loaded["a"].eq(step).all() and loaded["b"].eq(step).all()
    return step


def kill(folder, kills, seed, size):
    command = [sys.executable, HERE / "checkpoint_kills.py", folder, *map(str, (kills, seed, size))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.startswith(f"{kills} kills"), done.stdout + done.stderr


@pytest.mark.parametrize("kills, seed, size", [(40, 1, 1), (40, 2, 2), (20, 3, 3)])
def test_killed_saves(tmp_path, kills, seed, size):
    kill(tmp_path, kills, seed, size)


@pytest.mark.slow
@pytest.mark.parametrize("seed, size", [(4, 1), (5, 2), (6, 2), (7, 3)])
def test_a_thousand_killed_saves(tmp_path, seed, size):
    kill(tmp_path, 250, seed, size)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_each_system_call_fails_once(tmp_path, code):
    save(tmp_path, state(0), step=0, wait=True)
    with Faults(None, code) as counted:
        save(tmp_path, state(1), step=1, wait=True)
        save(tmp_path, state(2), step=2, wait=True)
    calls, told = counted.count // 2, 0
    assert calls > 20
    for n in range(1, calls + 5):
        before, step = loaded_step(tmp_path), 2 + n
        failure = None
        with Faults(n, code):
            try:
                save(tmp_path, state(step), step=step, wait=True)
            except (OSError, RuntimeError) as error:
                failure = error
        found = loaded_step(tmp_path)
        assert found in (before, step)
        if failure is None:
            assert found == step
        else:
            assert "planted" in str(failure) or isinstance(failure, FileExistsError)  # the folder's, which could not be looked at
            told += 1
    assert told > calls // 2
    save(tmp_path, state(1000), step=1000, wait=True)
    assert loaded_step(tmp_path) == 1000
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 3 and left[-1] == "lock"  # two, and nothing of those that failed


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_each_system_call_of_each_rank_fails_once(tmp_path, size):
    command = [sys.executable, HERE / "checkpoint_faults.py", tmp_path, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.endswith(" faults\n"), done.stdout + done.stderr


def test_a_limit_of_the_kernel(tmp_path):
    """A write that is cut short, and then refused."""
    save(tmp_path, state(1), step=1, wait=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with raises(RuntimeError, "the save of step 2", "File too large"):
            save(tmp_path, state(2), step=2, wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert loaded_step(tmp_path) == 1


def newest(folder):
    return pathlib.Path(latest(folder))


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def shares_of(path):
    return sorted(path.glob("*.safetensors"))


DAMAGES = {
    "a bit of a tensor": (lambda path: flip(shares_of(path)[0], -1), "its hash is another"),
    "a bit of a header": (lambda path: flip(shares_of(path)[0], 20, 5), "has changed since it was written"),
    "a header's length": (lambda path: flip(shares_of(path)[0], 6, 6), "was cut off, or has changed"),
    "a file is shorter": (lambda path: os.truncate(shares_of(path)[0], 1000), "has 1000 bytes of"),
    "a file is missing": (lambda path: shares_of(path)[0].unlink(), "is missing"),
    "a bit of the manifest": (lambda path: flip(path / "manifest.json", 200, 1), "manifest.json"),
    "the manifest is empty": (lambda path: (path / "manifest.json").write_text(""), "manifest.json cannot be read"),
    "the manifest is another's": (lambda path: (path / "manifest.json").write_text("[1]"), "manifest.json cannot be read"),
    "the manifest is missing": (lambda path: (path / "manifest.json").unlink(), "has no manifest.json"),
    "a file instead": (lambda path: (shutil.rmtree(path), path.write_text("")), "is no folder"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_ones_are_passed_over_by_name(tmp_path, damage):
    change, text = DAMAGES[damage]
    for step in (1, 2):
        save(tmp_path, state(step), step=step, wait=True)
    path = newest(tmp_path)
    change(path)
    with pytest.warns(RuntimeWarning, match="a damaged checkpoint is passed over: .*step-2"):
        assert loaded_step(tmp_path) == 1
    untouched = state(-1)
    with raises((Damaged, OSError), "step-2"):
        load(path, untouched)
    assert untouched["a"].eq(-1).all() and untouched["step"] == -1
    with warnings.catch_warnings(record=True):
        change(tmp_path / "000001-step-1")
        with raises(RuntimeError, "is whole: ", text, "step-1", "To begin anew, use another folder"):
            resume(tmp_path, untouched)
    assert untouched["a"].eq(-1).all()


def test_no_flipped_bit_is_accepted(tmp_path):
    save(tmp_path, state(1), step=1, wait=True)
    path, chance = newest(tmp_path), random.Random(0)
    for _ in range(300):
        file = chance.choice([*shares_of(path), path / "manifest.json"])
        data, at, bit = file.read_bytes(), chance.randrange(file.stat().st_size), chance.randrange(8)
        flip(file, at, bit)
        with raises(Damaged, path.name):
            load(path, state(-1))
        file.write_bytes(data)
    assert load(path, state(-1)) == 1


def test_two_jobs_in_one_folder(tmp_path):
    reader, writer = os.pipe()
    ready, done = os.pipe()
    other = os.fork()
    if other == 0:
        try:
            save(tmp_path, state(1), step=1, wait=True)
            os.write(done, b"!")
            os.close(writer)
            os.read(reader, 1)  # until the test has seen it
        finally:
            os._exit(0)
    os.close(reader)
    assert os.read(ready, 1) == b"!"
    with raises(BlockingIOError, f"process {other} of ", "saves checkpoints there", "a folder of its own"):
        save(tmp_path, state(2), step=2)
    os.close(writer)
    os.waitpid(other, 0)
    assert loaded_step(tmp_path) == 1
    save(tmp_path, state(2), step=2, wait=True)  # the lock has gone with its holder
    shutil.rmtree(tmp_path)
    save(tmp_path, state(3), step=3)  # another folder by the same name
    wait()
    assert loaded_step(tmp_path) == 3
    for each in (ready, done):
        os.close(each)
