"""``c10d_deaths.py SIZE GROUP``: for each operation a job of forked ranks in which one is killed; a JSON line of each.

PyTorch is imported once. All ranks repeat the operation until rank `VICTIM` has done it some times and is killed
by this process, wherever it is then. GROUP is ``default`` or ``subgroup``: two of the ranks, in another order than
in the job, while the others wait in the default group.
"""

import json
import os
import signal
import sys
import tempfile
import time

import torch.distributed as dist
from c10d_operations import OPERATIONS
from rueda.torch.distributed import LostRankError

VICTIM = 1
ROUNDS = 3  # before the victim is killed
BYTES = 1 << 18
SECONDS = 60  # more than any wait here


def rank_of_job(rank, size, group_name, operation, store, here, told):
    """What each rank does; writes a byte to ``here`` for each round, and how it ended to ``told``."""
    dist.init_process_group("rueda", init_method="file://" + store, rank=rank, world_size=size)
    members = list(range(size))
    group = dist.group.WORLD
    if group_name == "subgroup":
        members = [size - 1, VICTIM] if size > 2 else [1, 0]
        group = dist.new_group(members, sort_ranks=False)
    report = {"rank": rank}
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            if rank in members:
                OPERATIONS[operation](group, BYTES)
                os.write(here, b".")
            else:
                dist.barrier()
    except Exception as error:
        report.update(
            at=time.monotonic(),
            lost=error.rank if isinstance(error, LostRankError) else None,
            is_of_pytorch=isinstance(error, dist.DistBackendError),
            text=f"{type(error).__name__}: {error}",
        )
    os.write(told, (json.dumps(report) + "\n").encode())
    dist.destroy_process_group()


def run(size, group_name, operation, folder):
    """The reports of the ranks that live on, with the seconds from the kill to each error."""
    rounds, reports = os.pipe(), os.pipe()
    children = []
    for rank in range(size):
        own_rounds = os.dup(rounds[1]) if rank == VICTIM else os.open(os.devnull, os.O_WRONLY)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rank_of_job(
                    rank,
                    size,
                    group_name,
                    operation,
                    folder + "/" + operation,
                    own_rounds,
                    reports[1],
                )
                code = 0
            finally:
                os._exit(code)
        os.close(own_rounds)
        children.append(child)
    os.close(rounds[1])
    os.close(reports[1])
    seen = b""
    while len(seen) < ROUNDS:
        more = os.read(rounds[0], 64)
        if not more:
            break
        seen += more
    killed_at = time.monotonic()
    os.kill(children[VICTIM], signal.SIGKILL)
    with open(reports[0]) as lines:
        told = [json.loads(line) for line in lines]
    os.close(rounds[0])
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for report in told:
        report["seconds"] = report.get("at", killed_at + SECONDS) - killed_at
    return {"operation": operation, "rounds": len(seen), "codes": codes, "reports": told}


def main(size, group_name):
    with tempfile.TemporaryDirectory(prefix="test-of-rueda-") as folder:
        for operation in OPERATIONS:
            print(json.dumps(run(int(size), group_name, operation, folder)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
