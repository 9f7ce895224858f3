"""The same collectives where the ranks are elsewhere: over tcp, and on several hosts."""

import os

import numpy as np
import rueda as hvd
from expect import same
from worlds import results, run_ranks


def every_kind_works():
    size, rank = hvd.size(), hvd.rank()
    for count in (3, 100_000):
        mine = np.arange(count, dtype=np.float32) + rank
        total = np.arange(count, dtype=np.float32) * size + sum(range(size))
        same(hvd.allreduce(mine, op=hvd.Sum), total)
        same(hvd.reducescatter(mine, op=hvd.Sum), np.array_split(total, size)[rank])
        same(hvd.broadcast(mine, size - 1), mine - rank + size - 1)
        parts = [np.full(count + r, r) for r in range(size)]
        same(hvd.allgather(parts[rank]), np.concatenate(parts))
        rows = np.repeat(np.arange(size), count) + 10 * rank
        sent = [np.full(count, rank + 10 * r) for r in range(size)]
        same(hvd.alltoall(rows), np.concatenate(sent))
    return {"rank": rank, "tcp": hvd.counter("tcp_bytes"), "shm": hvd.counter("shm_bytes")}


def works_over_tcp():
    hvd.init()
    return every_kind_works()


def test_ranks_of_one_host_may_use_tcp():
    found = results(run_ranks(3, works_over_tcp, env={"RUEDA_TRANSPORT": "tcp"}, manual=True))
    assert all(report["tcp"] > 0 and report["shm"] == 0 for report in found), found


def works_on_uneven_hosts():
    """Ranks 0 and 2 on one host, rank 1 on another."""
    os.environ["RUEDA_HOST_ID"] = "odd" if os.environ["RUEDA_RANK"] == "1" else "even"
    hvd.init()
    places = [
        (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
        hvd.is_homogeneous(),
    ]
    return {**every_kind_works(), "places": places}


def test_hosts_may_have_different_numbers_of_ranks():
    found = results(run_ranks(3, works_on_uneven_hosts, manual=True))
    assert [report["places"][0] for report in found] == [[0, 2, 0, 2], [0, 1, 1, 2], [1, 2, 0, 1]]
    assert not any(report["places"][1] for report in found)
    assert all(report["tcp"] > 0 for report in found)
