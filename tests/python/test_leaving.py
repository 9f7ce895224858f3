"""One thread leaves the job while others use it: they get errors that say so, and the process goes on."""

import threading

import numpy as np
import rueda as hvd
from rueda import _marks
from rueda._runtime import runtime
from rueda.attention import AttentionPlan
from worlds import results, run_ranks

ROUNDS = 20
# What a call may say when the job has been left, or was left and joined again, in the middle of it.
ALLOWED = (hvd.HorovodInternalError, ValueError)


def collectives():
    hvd.allreduce(np.ones(8), name=f"own {threading.get_ident()}")
    handle = hvd.allreduce_async(np.ones(8), name=f"held {threading.get_ident()}")
    result = hvd.synchronize(handle)
    assert result is not None
    assert hvd.allgather(np.ones(2), name=f"rows {threading.get_ident()}") is not None


def numbers():
    assert hvd.counter("batches") >= 0
    assert hvd.counters()["batches"] >= 0
    assert hvd.rank() == 0 and hvd.size() == 1
    assert hvd.get_process_set_ids_and_ranks()[0] == [0]
    runtime.lost()


def asking():
    assert hvd.should_stop() is False


def marking():
    _marks.begin("forward")
    _marks.begin_step()
    _marks.end_step()
    _marks.instant("here")
    _marks.end("forward")


def planning():
    plan = AttentionPlan(
        length=64, heads=2, kv_heads=2, head_dim=16, process_set=hvd.global_process_set
    )
    assert plan.tokens == 64
    assert hvd.empty(8).sum() == 0


def leaves_while_others_use_it():
    over, failures, done = threading.Event(), [], {}

    def again_and_again(call):
        done[call.__name__] = 0
        while not over.is_set():
            try:
                call()
                done[call.__name__] += 1
            except ALLOWED:
                pass
            except BaseException as error:
                failures.append((call.__name__, repr(error)))
                return

    hvd.init()
    calls = (collectives, collectives, numbers, asking, marking, planning)
    threads = [threading.Thread(target=again_and_again, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROUNDS):
            before = dict(done)
            while not failures and any(done[n] == before.get(n, 0) for n in ("collectives", "numbers")):
                threading.Event().wait(0.001)  # every round sees calls that go well
            hvd.shutdown()
            assert not hvd.is_initialized()
            hvd.init()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert all(done.values()), done
    rank = hvd.rank()
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [1, 1]
    assert not runtime._entries, runtime._entries
    return {"rank": rank}


def test_a_job_may_be_left_while_other_threads_use_it():
    results(run_ranks(1, leaves_while_others_use_it, manual=True))


def waits_for_a_rank_that_leaves():
    """Ranks wait for one another, and each leaves by another thread's doing."""
    for round_ in range(ROUNDS):
        hvd.init()
        rank, ended, started = hvd.rank(), [], threading.Event()

        def wait():
            handle = hvd.allreduce_async(np.ones(4), name=f"never {hvd.rank()}", op=hvd.Sum)
            started.set()
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as error:
                ended.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        hvd.shutdown()
        thread.join(60)
        assert len(ended) == 1 and "never" in ended[0], ended
    return {"rank": rank}


def test_who_waits_for_others_hears_that_this_rank_has_left():
    results(run_ranks(2, waits_for_a_rank_that_leaves, manual=True))
