"""hvd.stats: what a rank did, as docs/counters.md lists it."""

import time

import numpy as np
import pytest
import rueda as hvd
from test_counters import listed
from worlds import ranks

from rueda import _marks

OTHERS = {"late_ranks", "transport"}


@ranks(2)
def test_all_stats_are_those_of_the_page():
    before = hvd.stats()
    assert list(before) == [*listed("STATS"), "late_ranks", "transport"]
    numbers = {name: value for name, value in before.items() if name not in OTHERS}
    assert all(type(value) in (int, float) and value >= 0 for value in numbers.values()), before
    assert before["size"] == 2 and before["transport"] == "shm"
    assert all(type(numbers[name]) is int for name in ("steps", "bytes", "send_operations", "batches"))


@ranks(2)
def test_what_was_submitted_is_what_was_counted():
    hvd.stats(reset=True)
    for step in range(30):
        hvd.allreduce(np.ones(100, np.float32), name="gradient")
        hvd.grouped_allreduce([np.ones(10), np.ones(5)], name="pair")
    hvd.allgather(np.ones((3, 2), np.int64), name="rows")
    hvd.broadcast(np.ones(7, np.uint8), 0, name="model")
    hvd.barrier()
    found = hvd.stats()
    assert found["allreduce_operations"] == 90 and found["allreduce_bytes"] == 30 * (400 + 80 + 40)
    assert found["allgather_operations"] == 1 and found["allgather_bytes"] == 48
    assert found["broadcast_bytes"] == 7 and found["barrier_operations"] == 1
    assert found["operations"] == 93 and found["planned_batches"] > 0
    assert 0 < found["collective_seconds_mean"] and found["busy_seconds"] <= found["seconds"]
    assert found["steps"] > 0  # of the plan: there is no optimizer
    assert hvd.stats(reset=True)["operations"] == 93
    assert hvd.stats()["operations"] == 0


@ranks(2)
def test_messages_and_groups_count():
    hvd.stats(reset=True)
    if hvd.rank() == 0:
        hvd.send(np.ones(4, np.float32), 1)
    else:
        hvd.recv(np.empty(4, np.float32), 0)
    found = hvd.stats()
    assert (found["send_bytes"], found["recv_bytes"]) == ((16, 0), (0, 16))[hvd.rank()]


@ranks(3)
def test_the_late_rank_is_named_by_all():
    for _ in range(30):
        hvd.allreduce(np.ones(1000, np.float32), name="gradient")  # a step plan
    hvd.stats(reset=True)
    for _ in range(5):
        if hvd.rank() == 2:
            time.sleep(0.1)  # the work that makes it late
        hvd.allreduce(np.ones(1000, np.float32), name="gradient")
    everybody = hvd.stats(all_ranks=True)
    assert [one["size"] for one in everybody] == [3, 3, 3]
    late = [one["late_seconds"] for one in everybody]
    assert late[2] > 0.5, late
    assert everybody[0]["late_ranks"][2] > 0.25
    assert everybody[0]["waiting_seconds"] > 0.25


@ranks(2)
def test_waiting_for_data_counts():
    hvd.stats(reset=True)
    _marks.begin_data()
    time.sleep(0.05)
    _marks.end_data()
    assert hvd.stats()["data_wait_seconds"] >= 0.05


@ranks(2)
def test_steps_of_a_wrapped_optimizer_are_told():
    torch = pytest.importorskip("torch")
    import rueda.torch

    model = torch.nn.Linear(4, 2)
    optimizer = rueda.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    before = hvd.stats()["steps"]
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    found = hvd.stats()
    assert found["steps"] == before + 10
    assert 0 < found["step_seconds_mean"] and found["step_seconds_p95"] > 0


def test_without_a_job_there_are_no_stats():
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.stats()
