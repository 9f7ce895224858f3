"""`from_store`: groups that PyTorch does not know of, made anew when a process has died."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from rueda.torch.distributed import LostRankError, from_store

SIZE, VICTIM = 3, 1


def total(group, value):
    tensor = torch.full((3,), float(value))
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    return tensor.tolist()


def live(rank, port):
    """Three processes form a group; when one has died the others form another one."""
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    group = from_store(dist.PrefixStore("first", store), rank, SIZE, timedelta(seconds=60))
    assert total(group, rank + 1) == [6.0] * 3
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            total(group, 1)
    except LostRankError as error:
        assert error.rank == VICTIM, error
    group.abort()
    place = [other for other in range(SIZE) if other != VICTIM].index(rank)
    group = from_store(dist.PrefixStore("second", store), place, SIZE - 1)
    assert (group.rank(), group.size()) == (place, SIZE - 1)
    assert total(group, place + 1) == [3.0] * 3
    group.shutdown()
    print("formed anew", flush=True)


def main():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = [
        subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(rank), str(store.port)])
        for rank in range(SIZE)
    ]
    codes = [child.wait(timeout=100) for child in children]
    assert codes.pop(VICTIM) == -signal.SIGKILL and not any(codes), codes


def test_a_group_is_formed_anew_without_the_one_that_died():
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env={**clean, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and done.stdout.count("formed anew") == 2, done.stdout


if __name__ == "__main__":
    live(*map(int, sys.argv[1:])) if len(sys.argv) > 1 else main()
