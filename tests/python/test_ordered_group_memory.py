"""Many ordered groups at once on a machine whose /dev/shm is small, as containers have it."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from worlds import ruedarun

PROGRAM = """
import numpy as np
import rueda as hvd
from ordered_groups import Group, add

hvd.init()
pair = [0, 1] if hvd.rank() < 2 else [3, 2]
groups = [Group(f"group {i}", pair) for i in range(64)]
before = hvd.counter("bytes_reduced")
for round in range(2):
    for group in groups:
        data = np.full(50_000, 1.0 + hvd.rank(), np.float32)
        add(group, data)
        assert (data == 2 + sum(pair)).all()
reduced = hvd.counter("bytes_reduced") - before
assert reduced == 64 * (2 * 200_000 + 2), reduced  # all of it in shared memory, and a byte of each member about it
hvd.barrier()
hvd.shutdown()
print("right", flush=True)
"""
SMALL = "mount -t tmpfs -o size=64m none /dev/shm && exec"


def may_mount():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "sh", "-c", f"{SMALL} true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no mount namespaces here")
def test_64_groups_of_a_rank_share_memory_though_dev_shm_is_small(tmp_path):
    script = tmp_path / "groups.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{SMALL} "$@"', "sh", ruedarun(), "-np", "4", sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout.count("right") == 4, done.stdout
