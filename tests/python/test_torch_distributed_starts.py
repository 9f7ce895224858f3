"""Starting: `init_process_group("rueda")` under each launcher and without one; the examples beside Gloo's."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from worlds import launch

HERE = pathlib.Path(__file__).parent
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("rueda")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert dist.get_backend() == "rueda" and tensor.tolist() == [dist.get_world_size()] * 3
print(f"sum {int(tensor[0])}\\n", end="", flush=True)
dist.destroy_process_group()
"""
SPAWNED = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, where):
    dist.init_process_group("rueda", init_method=where, rank=rank, world_size=2)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(main, ("file://" + sys.argv[1],), 2)
    print("sum 2")
"""
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")}


def run(*command, env=None):
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env={**CLEAN, "OMP_NUM_THREADS": "1", **(env or {})},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def torchrun():
    found = pathlib.Path(sys.executable).with_name("torchrun")
    return found if found.exists() else shutil.which("torchrun")


def test_ruedarun_gives_rank_size_and_store_without_a_port(program):
    code, output = launch(2, [sys.executable, program])
    assert code == 0 and output.count("sum 2") == 2, output


def test_torchrun(program):
    assert run(torchrun(), "--nproc-per-node", 2, program).count("sum 2") == 2


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_mpirun(program, tmp_path):
    place = 'rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=2)'
    text = PROGRAM.replace('"rueda")', f'"rueda", init_method="file://{tmp_path}/meet", {place}', 1)
    program.write_text("import os" + text)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert (
        run("mpirun", "--oversubscribe", "-np", 2, sys.executable, program, env=root).count("sum 2")
        == 2
    )


def test_spawned_processes(tmp_path):
    path = tmp_path / "spawn.py"
    path.write_text(SPAWNED)
    assert "sum 2" in run(sys.executable, path, tmp_path / "meet")


def test_one_process_alone(program, tmp_path):
    program.write_text(
        PROGRAM.replace(
            '"rueda")', f'"rueda", init_method="file://{tmp_path}/meet", rank=0, world_size=1)', 1
        )
    )
    assert "sum 1" in run(sys.executable, program)


def test_a_rank_that_contradicts_the_launcher_is_an_error_with_both(program):
    program.write_text(PROGRAM.replace('"rueda")', '"rueda", rank=0, world_size=2)', 1))
    code, output = launch(2, [sys.executable, program])
    assert code != 0
    assert "this is rank 0 of 2, but it is rank 1 of 2 of the job" in output, output


def test_a_script_for_gloo_gets_rueda_when_the_variable_says_so(program):
    text = PROGRAM.replace('init_process_group("rueda")', 'init_process_group("gloo")', 1)
    program.write_text(text)
    output = run(torchrun(), "--nproc-per-node", 2, program, env={"RUEDA_C10D": "1"})
    assert output.count("sum 2") == 2 and output.count("asked for gloo") == 1, output


def test_importing_torch_loads_nothing_and_survives_a_broken_installation():
    look = "import sys, torch; assert 'rueda' not in sys.modules; print(torch.distributed.Backend.RUEDA)"
    assert run(sys.executable, "-c", look).strip() == "rueda"
    broken = "import sys; sys.modules['rueda'] = None; import torch; print('imported')"
    assert "imported" in run(sys.executable, "-c", broken)


def test_a_pytorch_that_is_too_old_is_told_so_at_the_first_use(program):
    program.write_text(
        'import torch; torch.__version__ = "2.5.1+cpu"\n'
        "import rueda.torch\n"
        "try:\n"
        '    torch.distributed.init_process_group("rueda", store=torch.distributed.HashStore(), rank=0, world_size=1)\n'
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "needs PyTorch 2.6 or newer, this is 2.5.1+cpu" in run(sys.executable, program)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["ddp", pytest.param("fsdp", marks=SLOW), pytest.param("tensor_parallel", marks=SLOW)]
)
def test_examples_reach_what_they_reach_with_gloo(name):
    curves = []
    for backend, through in (("rueda", []), ("gloo", [HERE / "gloo_program.py"])):
        output = run(
            torchrun(),
            "--nproc-per-node",
            2,
            *through,
            EXAMPLES / f"train_{name}.py",
            "--backend",
            backend,
            "--epochs",
            2,
        )
        lines = [line.split() for line in output.splitlines() if line.startswith(("epoch", "test"))]
        curves.append([float(line[-1]) for line in lines])
    assert len(curves[0]) == 3 and curves[0][-1] > 0.7
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
