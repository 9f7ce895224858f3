"""Named operations that come again: persistent requests from the second time on, and nobody can tell."""

import os
import signal
import threading

import numpy as np
import rueda as hvd
import torch
from expect import raises, same
from rueda import _runtime
from rueda import torch as hvt
from rueda._runtime import runtime
from worlds import ranks, results, run_ranks

WORLD = "torch"


def persistent():
    """Keys of the persistent requests that are not in use."""
    return [key for key, value in runtime._persistent.items() if value]


@ranks(1, 2)
def test_results_of_the_tenth_time_are_those_of_the_first():
    size, rank = hvd.size(), hvd.rank()
    for i in range(10):
        value = np.arange(6, dtype=np.float32).reshape(2, 3) + rank + i
        rows = slice(0, 2) if size == 1 else slice(rank, rank + 1)
        everyone = [value - rank + r for r in range(size)]
        tensor = torch.from_numpy(value)
        for op, expected in ((hvd.Sum, sum(everyone)), (hvd.Average, sum(everyone) / size)):
            same(hvd.allreduce(value, name="a", op=op), expected)
            same(hvt.allreduce(tensor, name="a", op=op).numpy(), expected)
        same(hvd.allreduce(value, name="a"), sum(everyone) / size)
        scaled = hvd.allreduce(value, name="a", op=hvd.Sum, prescale_factor=2, postscale_factor=0.5)
        same(scaled, sum(everyone))
        same(hvd.reducescatter(value, name="a", op=hvd.Sum), sum(everyone)[rows])
        same(hvd.broadcast(value, size - 1, name="b"), everyone[-1])
        same(hvt.broadcast(tensor, 0, name="b").numpy(), everyone[0])
        for module, mine in ((hvd, value.copy()), (hvt, tensor.clone())):
            assert module.allreduce_(mine, name="c", op=hvd.Sum) is mine
            same(np.asarray(mine), sum(everyone))
            assert module.broadcast_(mine, 0, name="d") is mine
        same(value, everyone[rank])
        same(hvd.allreduce(np.float32(i), name="scalar"), np.array(i, np.float32))
        empty = np.empty((0, 3), np.float32)
        same(hvd.allreduce(empty, name="empty"), empty)
    assert len(persistent()) >= 12, persistent()


@ranks(2)
def test_forms_that_cannot_take_the_short_way_are_right_too():
    for i in range(4):
        value = torch.arange(12.0).reshape(3, 4) + hvd.rank()
        expected = 2 * torch.arange(12.0).reshape(3, 4) + 1
        assert torch.equal(hvt.allreduce(value, name="form", op=hvd.Sum), expected)
        # The same dtype and shape, but strided, negated lazily, with a gradient.
        strided = value.t().contiguous().t()
        assert torch.equal(hvt.allreduce(strided, name="form", op=hvd.Sum), expected)
        same(hvd.allreduce(strided.numpy(), name="form", op=hvd.Sum), expected.numpy())
        with raises(ValueError, "contiguous"):
            hvt.allreduce_(strided, name="form", op=hvd.Sum)
        with raises(ValueError, "is not supported."):
            hvt.allreduce(value.to_sparse(), name="form", op=hvd.Sum)
        leaf = value.clone().requires_grad_()
        hvt.allreduce(leaf, name="form", op=hvd.Sum).sum().backward()
        assert torch.equal(leaf.grad, torch.full((3, 4), 2.0))
        packed = hvt.allreduce(value, name="form", op=hvd.Sum, compression=hvt.Compression.bf16)
        assert torch.equal(packed, expected)
        frozen = value.numpy().copy()
        frozen.flags.writeable = False
        with raises(ValueError, "writable"):
            hvd.allreduce_(frozen, name="form", op=hvd.Sum)
        with raises(ValueError, "does not exist"):
            hvd.allreduce(frozen, name="form", op=hvd.Sum, process_set=hvd.ProcessSet([0]))


@ranks(2)
def test_one_name_with_changing_forms_and_ways():
    for i in range(12):
        for value in (np.ones(4, np.float32), np.ones(4, np.int64), np.ones((2, 3), np.float32)):
            plain = (i + hvd.rank()) % 3 == 0  # ranks take different ways at the same time
            if plain:
                runtime._persistent.clear()
            same(hvd.allreduce(value, name="name", op=hvd.Sum), value * 2)
            handle = hvd.allreduce_async(value, name="name", op=hvd.Sum)
            same(hvd.synchronize(handle), value * 2)


@ranks(1, 2, 3)
def test_unnamed_calls_that_come_again_are_new_operations_each_time():
    size, rank = hvd.size(), hvd.rank()
    kept = []
    for i in range(12):
        if (i + rank) % 5 == 4:
            runtime._persistent.clear()  # ranks take different ways at the same time
        rows = 2 * size
        everyone = [np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) + 100 * r + i for r in range(size)]
        for module, mine in ((hvd, everyone[rank]), (hvt, torch.from_numpy(everyone[rank].copy()))):
            some = mine[: 1 + (rank + i) % 2]  # other numbers of rows on each rank, and in each round
            found = (
                module.allgather(some),
                module.allgather(some, name="rows"),
                module.alltoall(mine),
                module.reducescatter(mine, op=hvd.Sum),
                module.allreduce(mine, op=hvd.Sum),
                module.broadcast(mine, size - 1),
                module.allgather(mine[:0]),
            )
            gathered = np.concatenate([x[: 1 + (r + i) % 2] for r, x in enumerate(everyone)])
            own = slice(2 * rank, 2 * rank + 2)
            expected = (
                gathered,
                gathered,
                np.concatenate([x[own] for x in everyone]),
                sum(everyone)[own],
                sum(everyone),
                everyone[-1],
                everyone[0][:0],
            )
            kept.append((found, expected))
    for found, expected in kept:  # also those of earlier rounds: each has memory of its own
        for result, value in zip(found, expected):
            same(np.asarray(result), value)


@ranks(2)
def test_an_unnamed_call_that_is_interrupted_gives_its_memory_up():
    for _ in range(3):
        hvd.allgather(np.ones(2)), hvd.allreduce(np.ones(2))
    for call in (hvd.allgather, hvd.allreduce):
        if hvd.rank() == 0:
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with raises(KeyboardInterrupt):
                call(np.ones(2))
            timer.join()
            assert len(runtime._abandoned) == 1 and not runtime._entries
        hvd.send(np.ones(1), 1, tag=3) if hvd.rank() == 0 else hvd.recv(np.ones(1), 0, tag=3)
        if hvd.rank() == 1:
            call(np.ones(2))
        hvd.barrier()
        same(call(np.ones(2)), np.ones(4 if call is hvd.allgather else 2))
        assert not runtime._abandoned


@ranks(2)
def test_a_name_in_flight_is_refused_with_the_same_words():
    one = np.ones(2)
    words = "allreduce 'flying': submitted with the same name as another tensor"
    for i in range(4):
        same(hvd.allreduce(one, name="flying", op=hvd.Sum), one * 2)
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(one, name="flying", op=hvd.Sum)
            for again in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async):
                with raises(ValueError, words):
                    again(one, name="flying", op=hvd.Sum)
            with raises(ValueError, words):
                hvd.allreduce(np.ones(3), name="flying", op=hvd.Sum)
        hvd.barrier()
        if hvd.rank() == 1:
            handle = hvd.allreduce_async(one, name="flying", op=hvd.Sum)
        same(hvd.synchronize(handle), one * 2)


@ranks(2)
def test_a_rank_with_another_form_fails_everyone_and_the_name_works_on():
    for i in range(4):
        for _ in range(3):
            same(hvd.allreduce(np.ones(4), name="odd", op=hvd.Sum), np.full(4, 2.0))
        with raises(hvd.HorovodInternalError, "odd", "Mismatched ALLREDUCE tensor shapes"):
            hvd.allreduce(np.ones(4 + hvd.rank()), name="odd", op=hvd.Sum)


@ranks(2)
def test_an_interrupt_ends_a_blocking_operation_and_its_memory_is_kept():
    for _ in range(3):
        same(hvd.allreduce(np.ones(2), name="stopped", op=hvd.Sum), np.full(2, 2.0))
    assert any("stopped" in key for key in persistent())
    if hvd.rank() == 0:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with raises(KeyboardInterrupt):
            hvd.allreduce(np.ones(2), name="stopped", op=hvd.Sum)
        timer.join()
        assert len(runtime._abandoned) == 1
        with raises(ValueError, "submitted with the same name"):
            hvd.allreduce(np.ones(2), name="stopped", op=hvd.Sum)
    hvd.barrier()
    if hvd.rank() == 1:
        same(hvd.allreduce(np.ones(2), name="stopped", op=hvd.Sum), np.full(2, 2.0))
    hvd.barrier()
    for _ in range(3):
        same(hvd.allreduce(np.ones(2), name="stopped", op=hvd.Sum), np.full(2, 2.0))
    assert not runtime._abandoned


@ranks(2)
def test_a_deadline_names_a_persistent_request_that_did_not_come():
    for _ in range(3):
        hvd.allreduce(np.ones(2), name="tardy")
    handle = hvd.allreduce_async(np.ones(2), name="tardy") if hvd.rank() == 0 else None
    if hvd.rank() == 0:
        with raises(hvd.DeadlineExceeded, "allreduce 'tardy' has not ended after"):
            hvd.synchronize(handle, timeout=0.05)
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(np.ones(2), name="tardy")
    same(hvd.synchronize(handle), np.ones(2))


@ranks(2)
def test_only_so_many_are_remembered():
    before, _runtime._MOST_PERSISTENT = _runtime._MOST_PERSISTENT, 8
    try:
        for _ in range(3):
            for i in range(20):
                same(hvd.allreduce(np.ones(1), name=f"many{i}", op=hvd.Sum), np.full(1, 2.0))
                same(hvd.allreduce(np.ones(1), name=f"many{i}", op=hvd.Sum), np.full(1, 2.0))
        assert len(runtime._persistent) <= 8
    finally:
        _runtime._MOST_PERSISTENT = before


def comes_again():
    for i in range(3):
        hvd.init()
        assert not runtime._persistent
        for _ in range(4):
            same(hvd.allreduce(np.ones(2), name="x", op=hvd.Sum), np.full(2, 2.0))
        assert persistent()
        rank = hvd.rank()
        hvd.shutdown()
        with raises(hvd.HorovodInternalError, "has been shut down", "has not been initialized"):
            hvd.allreduce(np.ones(2), name="x", op=hvd.Sum)
    return {"rank": rank}


def test_a_new_job_begins_anew():
    results(run_ranks(2, comes_again, manual=True))


@ranks(2)
def test_steps_of_an_optimizer_soon_need_no_message():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    hvt.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvt.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    # A plan needs the same batches three times in a row; a rank that is kept off its core cuts them anew.
    grown = []
    while (not grown or grown[-1] > 0) and len(grown) < 20:
        before = hvd.counter("control_messages")
        steps(20)
        grown.append(hvd.counter("control_messages") - before)
    assert grown[-1] == 0, f"messages in each 20 steps: {grown}"


@ranks(2)
def test_an_optimizer_with_more_gradients_than_are_remembered_goes_the_short_way_too():
    import gc

    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(60)]
    before, _runtime._MOST_PERSISTENT = _runtime._MOST_PERSISTENT, 8
    reserved = _runtime.runtime._reserved
    try:
        optimizer = hvt.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
        for _ in range(4):
            optimizer.zero_grad()
            torch.stack(parameters).sum().backward()
            optimizer.step()
        kept = [gradient.in_place._request for gradient in optimizer._gradient_of.values()]
        assert None not in kept and len(set(map(id, kept))) == len(parameters)
        del optimizer, kept
        gc.collect()
        assert _runtime.runtime._reserved == reserved
    finally:
        _runtime._MOST_PERSISTENT = before
