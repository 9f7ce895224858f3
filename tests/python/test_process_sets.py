"""Process sets: every operation among some of the ranks, registered at init or while the job runs."""

import threading

import numpy as np
import rueda as hvd
import torch
from expect import raises, same
from rueda import torch as hvt
from worlds import ranks, results, run_ranks

WORLD = "torch"


def add(*members):
    return hvd.add_process_set(members)


@ranks(3, 4)
def test_every_operation_takes_part_in_its_set_only():
    rank, size = hvd.rank(), hvd.size()
    outer = hvd.add_process_set(hvd.ProcessSet([size - 1, 0]))
    inner = add(*range(1, size))
    for process_set in (outer, inner):
        members, count = process_set.ranks, process_set.size()
        assert process_set.included() == (rank in members)
        if rank not in members:
            with raises(ValueError, f"rank {rank} is not a member of the provided process set"):
                hvd.allreduce(np.ones(2, np.float32), process_set=process_set)
            with raises(ValueError, "not a member"):
                process_set.rank()
            continue
        place = members.index(rank)
        assert process_set.rank() == place
        mine = np.arange(12, dtype=np.float32).reshape(6, 2) + rank
        total = sum(np.arange(12, dtype=np.float32).reshape(6, 2) + r for r in members)
        last = members[-1]
        for i in range(4):  # also persistent and unnamed
            for hv in (hvd, hvt):
                tensor = mine.copy() if hv is hvd else torch.from_numpy(mine.copy())
                named = {"name": "x", "process_set": process_set}
                same(hv.allreduce(tensor, op=hvd.Sum, **named), total)
                same(hv.allreduce(tensor, process_set=process_set), total / count)
                same(hv.synchronize(hv.allreduce_async(tensor, op=hvd.Sum, **named)), total)
                same(hv.broadcast(tensor, last, **named), mine - rank + last)
                same(
                    hv.allgather(tensor[: place + 1], process_set=process_set),
                    np.concatenate([(mine - rank + r)[: i + 1] for i, r in enumerate(members)]),
                )
                rows = np.array_split(total, count)[place]
                same(hv.reducescatter(tensor, op=hvd.Sum, **named), rows)
                for output in hv.grouped_allreduce([tensor] * 3, op=hvd.Sum, **named):
                    same(output, total)
                splits = [1] + [0] * (count - 2) + [2]
                out, received = hv.alltoall(tensor, splits, process_set=process_set)
                first, sent = (0, 1) if place == 0 else (1, 2 if place == count - 1 else 0)
                expected = [(mine - rank + r)[first : first + sent] for r in members]
                same(out, np.concatenate(expected))
                assert list(received) == [sent] * count
                again = hv.allreduce_(tensor, op=hvd.Sum, **named)
                assert again is tensor
                same(tensor, total)
                hv.barrier(process_set=process_set)
        assert hvd.broadcast_object({"from": rank}, last, process_set=process_set) == {"from": last}
        assert hvd.allgather_object(rank, process_set=process_set) == members
        with raises(ValueError, "invalid root rank"):
            absent = next(r for r in range(size) if r not in members)
            hvd.broadcast(mine, absent, process_set=process_set)
    assert hvd.remove_process_set(inner) and hvd.remove_process_set(outer)


@ranks(3, 4)
def test_gradients_and_training_state_in_a_set():
    rank = hvd.rank()
    pair = add(0, 2)
    if rank in (0, 2):
        x = torch.ones(4, 2, requires_grad=True)
        hvt.allreduce(x, op=hvd.Sum, process_set=pair).sum().backward()
        same(x.grad.numpy(), np.full((4, 2), 2, np.float32))
        x.grad = None
        rows = hvt.allgather(x, process_set=pair)[: 4 if rank == 0 else 8]
        (rows.sum() * (rank + 1)).backward()
        same(x.grad.numpy(), np.full((4, 2), 2 if rank == 0 else 1.5, np.float32))
        x.grad = None
        hvt.reducescatter(x, op=hvd.Sum, process_set=pair).sum().backward()
        same(x.grad.numpy(), np.full((4, 2), 2, np.float32))
        torch.manual_seed(rank)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + rank)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        hvt.broadcast_parameters(model.state_dict(), 2, process_set=pair)
        hvt.broadcast_optimizer_state(optimizer, 2, process_set=pair)
        assert optimizer.param_groups[0]["lr"] == 2.1
        everyone = hvt.allgather_object(model.weight.tolist(), process_set=pair)
        assert everyone[0] == everyone[1]
    hvd.remove_process_set(pair)


@ranks(3, 4)
def test_sets_overlap_and_run_at_once_in_threads():
    rank, size = hvd.rank(), hvd.size()
    sets = [add(r, (r + 1) % size) for r in range(size)]
    problems = []

    def work(process_set):
        try:
            for i in range(50):
                out = hvd.allreduce(np.full(300, rank, np.int64), name="x", op=hvd.Sum,
                                    process_set=process_set)
                same(out, np.full(300, sum(process_set.ranks), np.int64))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(s,)) for s in sets if s.included()]
    for thread in threads:
        thread.start()
    same(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, float(size)))
    for thread in threads:
        thread.join()
    assert not problems, problems
    for process_set in sets:
        hvd.remove_process_set(process_set)


@ranks(3, 4)
def test_registration_is_agreed_on_and_taken_back():
    rank, size = hvd.rank(), hvd.size()
    everyone = list(range(size))
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone}
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    with raises(ValueError, "does not exist"):
        hvd.allreduce(np.ones(1), process_set=hvd.ProcessSet([0, 1]))
    with raises(ValueError, "must be a ProcessSet"):
        hvd.allreduce(np.ones(1), process_set=None)
    for wrong, fragment in (([], "at least one rank"), ([size], f"rank {size}"), ([1, 1], "twice")):
        with raises(ValueError, fragment):
            hvd.add_process_set(wrong)
    with raises(ValueError, "exists already"):
        hvd.add_process_set(everyone)
    with raises(hvd.HorovodInternalError, "Mismatched process sets", "to add [1]", "to add [0]"):
        hvd.add_process_set([1] if rank == 1 else [0])
    first, second = add(0), add(1, 2)
    one, two = first.process_set_id, second.process_set_id
    assert 0 < one != two > 0
    with raises(ValueError, f"exists already: process set {two}"):
        add(2, 1)
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone, one: [0], two: [1, 2]}
    assert hvd.process_set_included(two) == (rank in (1, 2)) and hvd.process_set_included()
    with raises(ValueError, "process set 777 does not exist"):
        hvd.process_set_included(777)
    if rank in (1, 2):  # remembered by name and form
        for _ in range(3):
            hvd.allreduce(np.ones(2), name="kept", process_set=second)
    assert hvd.remove_process_set(second) is True
    assert second.process_set_id is None and second.rank() is None and second.size() is None
    assert str(second) == "ProcessSet(process_set_id=None, ranks=[1, 2], mpi_comm=None)"
    with raises(ValueError, "does not exist"):
        hvd.allreduce(np.ones(2), name="kept", process_set=second)
    assert hvd.remove_process_set(first) is True
    assert hvd.add_process_set(second) is second
    if rank in (1, 2):
        for _ in range(3):
            same(hvd.allreduce(np.ones(2), name="kept", process_set=second), np.ones(2))
    hvd.remove_process_set(second)
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone}


@ranks(3)
def test_what_is_pending_in_a_removed_set_ends_with_an_error():
    pair = add(0, 1)
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name="never", process_set=pair)
    hvd.remove_process_set(pair)
    if handle is not None:
        with raises(hvd.HorovodInternalError, "never", "remove"):
            hvd.synchronize(handle)
    same(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, 3.0))


def start_with_sets():
    pairs = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 1])
    for _ in range(2):  # shutdown takes the sets along
        hvd.init(process_sets=pairs)
        assert [p.process_set_id for p in pairs] == [1, 2]
        hvd.init(process_sets=[pairs[1]])  # again: nothing new
        assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 1], 2: [1, 2]}
        for pair in pairs:
            if pair.included():
                same(hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=pair), np.full(2, 2.0))
        rank = hvd.rank()
        hvd.shutdown()
        assert pairs[0].process_set_id is None
    with raises(ValueError, "given twice"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    with raises(ValueError, "has all ranks"):
        hvd.init(process_sets=[hvd.ProcessSet([0, 2, 1])])
    with raises(ValueError, "expected a list or 'dynamic'"):
        hvd.init(process_sets="static")
    hvd.init(process_sets=[hvd.ProcessSet([0, 2])])
    assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0], 2: [0, 2]}
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert add(1).process_set_id == 1
    return {"rank": rank}


def test_sets_given_to_init():
    assert [r["rank"] for r in results(run_ranks(3, start_with_sets, manual=True))] == [0, 1, 2]
