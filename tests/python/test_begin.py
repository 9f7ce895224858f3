"""`rueda demo` and `rueda new`, as somebody meets them who has installed the package a minute ago."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import rueda
from rueda import begin
from worlds import launch

PACKAGE = pathlib.Path(rueda.__file__).parent


def tool(*arguments, folder):
    command = [sys.executable, "-m", "rueda", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_demo_trains_the_digits(tmp_path):
    if not (PACKAGE / "share").is_dir():
        pytest.skip("the package was not installed")
    done = tool("demo", "--epochs", 2, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "training on 2 ranks" in done.stdout and "test accuracy 0." in done.stdout
    hashes = [line.split()[-1] for line in done.stdout.splitlines() if "parameter hash" in line]
    assert len(hashes) == 2 and hashes[0] == hashes[1]
    assert done.stderr == "", "a healthy job says nothing of itself"
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_what_it_lacks(tmp_path):
    (tmp_path / "begin_without_torch.py").write_text(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "from rueda import begin; begin.demo([])\n"
    )
    done = subprocess.run([sys.executable, "begin_without_torch.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install torch" in done.stderr or "not installed" in done.stderr, done
    assert tool("demo", "-np", 0, folder=tmp_path).returncode == 2


@pytest.mark.parametrize("kind", ["pytorch", "ddp", "numpy"])
def test_a_new_script_runs_on_one_rank_and_on_two(kind, tmp_path):
    done = tool("new", "train.py", "--kind", kind, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "train.py is written: ruedarun -np 2 python train.py\n"
    assert "ruedarun -np 2 python train.py" in (tmp_path / "train.py").read_text()
    for ranks in (1, 2):
        code, output = launch(ranks, [sys.executable, "train.py"], folder=tmp_path)
        assert code == 0, output
        assert {"numpy": f"of {ranks} ranks"}.get(kind, "loss 0.") in output, output


def test_a_new_program_in_cpp_compiles_and_runs(tmp_path):
    if not (PACKAGE / "lib" / "pkgconfig").is_dir() or shutil.which("g++") is None:
        pytest.skip("the package was not installed, or there is no g++")
    assert tool("new", "job.cc", folder=tmp_path).returncode == 0
    lines = (tmp_path / "job.cc").read_text().splitlines()
    words = "\n".join(line.lstrip("/ ") for line in lines[2:5])
    assert "g++ -std=c++20 job.cc -o job " in words
    env = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", words], cwd=tmp_path, env=env, check=True)
    code, output = launch(2, ["./job"], folder=tmp_path)
    assert code == 0 and "2 ranks: 1.5" in output, output


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "model.py").write_text("mine")
    done = tool("new", "model.py", folder=tmp_path)
    assert done.returncode == 2 and "is there already; nothing was written" in done.stderr
    assert (tmp_path / "model.py").read_text() == "mine"
    for arguments in (("x.py", "--kind", "c++"), ("x.cc", "--kind", "numpy"), ("no/such/folder/x.py",)):
        assert tool("new", *arguments, folder=tmp_path).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_every_kind_has_its_template():
    folder = pathlib.Path(begin.__file__).parent / "templates"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == sorted(begin.TEMPLATES.values())
