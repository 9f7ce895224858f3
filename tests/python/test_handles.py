"""Asynchronous operations: handles, polling, deadlines, names, threads, interrupts, forks."""

import os
import signal
import threading

import numpy as np
import pytest
import rueda as hvd
from expect import eventually, raises, same
from rueda import _runtime
from worlds import ranks, results, run_ranks


def pass_token(sender, receiver):
    """Orders two ranks: the receiver goes on after the sender has come here."""
    if hvd.rank() == sender:
        hvd.send(np.zeros(1), receiver, tag=99)
    elif hvd.rank() == receiver:
        hvd.recv(np.zeros(1), sender, tag=99)


@ranks(2, 3)
def test_poll_is_false_until_the_last_rank_submits_and_true_after():
    if hvd.rank() == 1:
        pass_token(0, 1)
    handle = hvd.allreduce_async(np.ones(4), name="polled", op=hvd.Sum)
    if hvd.rank() == 0:
        assert not hvd.poll(handle)  # rank 1 waits for the token
        pass_token(0, 1)
    eventually(lambda: hvd.poll(handle))
    same(hvd.synchronize(handle), np.full(4, float(hvd.size())))


@ranks(1, 2)
def test_a_handle_is_collected_once():
    handle = hvd.allreduce_async(np.ones(1), name="once", op=hvd.Sum)
    assert hvd.synchronize(handle) is not None
    assert hvd.synchronize(handle) is None
    with raises(ValueError):
        hvd.poll(handle)


@ranks(2, 3)
def test_a_duplicate_name_is_refused_on_its_rank_alone():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(1), name="dup", op=hvd.Sum)
        with raises(ValueError, "dup"):
            hvd.allreduce_async(np.ones(1), name="dup", op=hvd.Sum)
    hvd.barrier()  # others can work meanwhile
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(np.ones(1), name="dup", op=hvd.Sum)
    same(hvd.synchronize(handle), np.full(1, float(hvd.size())))


@ranks(2, 3)
def test_a_deadline_ends_the_wait_and_not_the_operation():
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(2), name="late", op=hvd.Sum)
        with raises(hvd.DeadlineExceeded, "late"):
            hvd.synchronize(handle, timeout=0.05)
        with raises(TimeoutError):
            hvd.synchronize(handle, timeout=0)
        assert not hvd.poll(handle)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(np.ones(2), name="late", op=hvd.Sum)
    same(hvd.synchronize(handle, timeout=60), np.full(2, float(hvd.size())))


@ranks(2)
def test_operations_end_while_their_callers_compute_and_call_nothing():
    result = np.ones(1000, np.float32)
    handle = hvd.allreduce_async_(result, name="background", op=hvd.Sum)
    # Looks at memory that still belongs to rueda: no call, no wait, only the background thread.
    eventually(lambda: result[0] == 2 and result[-1] == 2)
    eventually(lambda: hvd.poll(handle))
    same(hvd.synchronize(handle), np.full(1000, 2, np.float32))


@ranks(2)
def test_a_dropped_handle_keeps_its_tensors_until_the_operation_has_ended():
    from rueda._runtime import runtime

    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(np.ones(100_000), name="dropped", op=hvd.Sum)
        runtime.abandon(handle)
        assert len(runtime._abandoned) == 1
        with raises(ValueError):
            hvd.poll(handle)
    hvd.barrier()
    if hvd.rank() == 1:
        same(hvd.allreduce(np.ones(100_000), name="dropped", op=hvd.Sum), np.full(100_000, 2.0))
    hvd.barrier()
    if hvd.rank() == 0:

        def let_go():  # every submission looks whether what was given up has ended
            hvd.send(np.zeros(1), 1, tag=1)
            return not runtime._abandoned

        eventually(let_go)
        hvd.send(np.ones(1), 1, tag=1)
    else:
        while not hvd.recv(np.zeros(1), 0, tag=1)[0]:
            pass


@ranks(2, 3)
def test_threads_submit_and_wait_at_the_same_time():
    failures = []

    def work(thread):
        try:
            for i in range(20):
                expected = np.full(10, float(sum(range(hvd.size())) + hvd.size() * i))
                mine = np.full(10, float(hvd.rank() + i))
                same(hvd.allreduce(mine, name=f"t{thread}.{i}", op=hvd.Sum), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@ranks(2)
def test_an_interrupt_ends_the_wait():
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(1), name="interrupted", op=hvd.Sum)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        timer.join()
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(np.ones(1), name="interrupted", op=hvd.Sum)
    same(hvd.synchronize(handle), np.full(1, 2.0))


@ranks(2, 3)
def test_wait_any_gives_each_handle_once_as_it_ends():
    def begin(name):
        if name == "pair":
            return hvd.grouped_allreduce_async([np.ones(1), np.ones(3)], name=name, op=hvd.Sum)
        return hvd.allreduce_async(np.ones(2), name=name, op=hvd.Sum)

    order = "third", "first", "pair", "second"  # in which rank 1 comes
    handles = []
    if hvd.rank() != 1:
        started = {name: begin(name) for name in ("first", "second", "third", "pair")}
        handles = [None, *started.values()]
        with raises(hvd.DeadlineExceeded, "none has ended after"):
            hvd.wait_any(handles, timeout=0.1)
    hvd.barrier()
    for name in order:
        if hvd.rank() == 1:
            handles.append(begin(name))
            assert hvd.wait_any(handles) == handles[-1]  # those before were given
        else:
            assert hvd.wait_any(handles) == started[name]
        hvd.barrier()
    assert hvd.wait_any(handles) is None and hvd.wait_any([]) is None
    for handle in handles:
        hvd.synchronize(handle)
    assert hvd.wait_any(handles) is None


class Scripted:
    """A request that answers `test` as told, then that it has ended."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def test(self):
        return self.answers.pop(0) if self.answers else True


def test_wait_any_gives_what_ends_while_it_looks(monkeypatch):
    never = [Scripted(*[False] * 100) for _ in range(2)]
    between = Scripted(False)  # it ends after the first look, before the wait
    handles = [-10, -11, -12]
    for handle, request in zip(handles, [never[0], between, never[1]]):
        entry = _runtime._Entry(None, None, [request])
        monkeypatch.setitem(_runtime.runtime._entries, handle, entry)
    monkeypatch.setattr(_runtime, "wait_any", lambda *_: pytest.fail("it waits for the others"))
    assert hvd.wait_any(handles) == -11


@ranks(2)
def test_wait_any_in_several_threads_and_after_synchronize():
    handles = [hvd.allreduce_async(np.ones(3), name=f"shared {i}", op=hvd.Sum) for i in range(20)]
    same(hvd.synchronize(handles[7]), np.full(3, 2.0))  # is passed over from here on
    given, failures = [], []

    def work():
        try:
            while (handle := hvd.wait_any(handles)) is not None:
                given.append(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sorted(given) == sorted(set(handles) - {handles[7]})
    for handle in given:
        same(hvd.synchronize(handle), np.full(3, 2.0))


@ranks(2)
def test_an_interrupt_ends_wait_any():
    handles = []
    if hvd.rank() == 0:
        handles = [hvd.allreduce_async(np.ones(1), name=f"any {i}", op=hvd.Sum) for i in range(3)]
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with raises(KeyboardInterrupt):
            hvd.wait_any(handles)
        timer.join()
    hvd.barrier()
    if hvd.rank() == 1:
        handles = [hvd.allreduce_async(np.ones(1), name=f"any {i}", op=hvd.Sum) for i in range(3)]
    assert {hvd.wait_any(handles) for _ in handles} == set(handles)
    for handle in handles:
        same(hvd.synchronize(handle), np.full(1, 2.0))


@ranks(2)
def test_a_forked_child_is_not_initialised_and_leaves_its_parent_working():
    pending = hvd.allreduce_async(np.ones(3), name="pending", op=hvd.Sum)
    gathered = hvd.allgather(np.arange(3), name="gathered")
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.rank()]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not hvd.is_initialized()
            assert place == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.global_process_set.rank()]
            with raises(hvd.HorovodInternalError, "has not been initialized", f"forked from rank {place[0]}"):
                hvd.allreduce(np.ones(1))
            with raises(ValueError, "rueda has not been initialized; use hvd.init()."):
                hvd.get_process_set_ids_and_ranks()
            with raises(ValueError, f"forked from rank {place[0]}", "size() work here"):
                hvd.init()
            assert hvd.synchronize(pending) is None
            assert gathered.sum() == 6
            del gathered
            hvd.shutdown()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    same(hvd.synchronize(pending), np.full(3, 2.0))
    same(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, 2.0))


@ranks(2)
def test_gathered_memory_lives_as_long_as_an_array_looks_at_it():
    import gc
    import weakref

    from rueda import _runtime

    before = {id(o) for o in gc.get_objects() if isinstance(o, _runtime.Request)}
    view = hvd.allgather(np.arange(1000), name="viewed")[5:7]
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    request = weakref.ref(base.base._owner)
    assert id(request()) not in before
    del base
    gc.collect()
    assert request() is not None
    same(view, np.array([5, 6]))
    del view
    gc.collect()
    assert request() is None


def comes_and_goes():
    hvd.init()
    rank = hvd.rank()
    for i in range(10):
        hvd.init()  # again: nothing happens
        gathered = hvd.allgather(np.array([rank, i]))
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        same(gathered[2 * rank : 2 * rank + 2], np.array([rank, i]))  # outlives the job
        with raises(ValueError, "rueda has not been initialized; use hvd.init()."):
            hvd.size()
        with raises(hvd.HorovodInternalError, "has been shut down", "has not been initialized"):
            hvd.allreduce(np.ones(1))
        hvd.init()
        assert hvd.rank() == rank
    return {"rank": rank}


def test_a_job_can_be_left_and_joined_again():
    assert [r["rank"] for r in results(run_ranks(2, comes_and_goes, manual=True))] == [0, 1]


def leaves_with_operations_in_flight():
    hvd.init()
    rank = hvd.rank()
    handle = hvd.allreduce_async(np.ones(1), name=f"only{rank}", op=hvd.Sum)
    hvd.shutdown()
    with raises(hvd.HorovodInternalError, f"only{rank}"):
        hvd.synchronize(handle)
    return {"rank": rank}


def test_operations_in_flight_end_with_an_error_at_shutdown():
    results(run_ranks(2, leaves_with_operations_in_flight, manual=True))
