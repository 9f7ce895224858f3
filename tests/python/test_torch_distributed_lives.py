"""`init_process_group` and `hvd.init` share one job: in either order, and each ends alone; again and again."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from test_torch_distributed_groups import resources
from worlds import results, run_ranks

ROUNDS = 100
# Nobody has set up anything: the first of both makes the job, the last of both leaves it.
AGAIN = """
import sys
sys.path.insert(0, sys.argv[1])
from test_torch_distributed_lives import again_and_again
again_and_again()
print("went well", flush=True)
"""


def group_works():
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [dist.get_world_size()] * 3


def hvd_works(name):
    import rueda.torch as hvd

    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name=name).tolist() == [hvd.size()] * 3


def group_first():
    import rueda.torch as hvd

    dist.init_process_group("rueda")
    group_works()
    hvd.init()
    assert hvd.rank() == dist.get_rank() and hvd.size() == dist.get_world_size()
    hvd_works("both")
    dist.destroy_process_group()
    hvd_works("alone")
    dist.init_process_group("rueda")
    group_works()
    hvd.shutdown()
    group_works()
    dist.destroy_process_group()
    return {"rank": int(os.environ["RUEDA_RANK"])}


def hvd_first():
    import rueda.torch as hvd

    hvd.init()
    hvd_works("alone")
    dist.init_process_group("rueda")
    group_works()
    hvd.shutdown()
    group_works()
    hvd.init()
    hvd_works("again")
    group_works()
    dist.destroy_process_group()
    hvd_works("afterwards")
    hvd.shutdown()
    return {"rank": int(os.environ["RUEDA_RANK"])}


def again_and_again():
    for turn in range(ROUNDS):
        dist.init_process_group("rueda")
        group_works()
        dist.destroy_process_group()
        if turn == ROUNDS // 4:
            before = resources()
    after = resources()
    assert after[1:] == before[1:], (before, after)
    assert after[0] < before[0] + (32 << 10), (before, after)
    return {"rank": int(os.environ["RANK"])}


def test_the_group_comes_first():
    results(run_ranks(2, group_first, manual=True))


def test_hvd_comes_first():
    results(run_ranks(2, hvd_first, manual=True))


def test_a_hundred_rounds():
    results(run_ranks(2, again_and_again, manual=True))


@pytest.mark.slow
def test_a_hundred_rounds_without_the_launcher(tmp_path):
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")}
    here = pathlib.Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", program, here],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        env={**clean, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and done.stdout.count("went well") == 2, done.stdout
