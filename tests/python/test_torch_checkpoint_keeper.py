"""Checkpoints of what a job commits: when they are begun, that nobody waits for them, and what they are when one fails."""

import contextlib
import errno
import os
import threading
import warnings

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _files, checkpoint
from rueda.torch.checkpoint import _saving, _writing, latest
from rueda.torch.checkpoint._keeper import Keeper
from test_sharded_checkpoint import remove, shared_folder
from worlds import ranks

WORLD = "torch"


class Sampler:
    """With what an elastic sampler has of its own on each rank."""

    def __init__(self, done=()):
        self.processed_indices = set(done)

    def state_dict(self):
        return {"epoch": 1, "processed_indices": self.processed_indices}

    def load_state_dict(self, state):
        self.processed_indices = state["processed_indices"]


def state(commits):
    return {"x": torch.full((1 << 16,), commits), "batch": commits, "none": None}


@contextlib.contextmanager
def held_up():
    """The thread writes nothing until the block is left."""
    may_write, original = threading.Event(), _writing.write_all

    def write_all(*arguments):
        may_write.wait()
        _files.write_all(*arguments)

    _writing.write_all = write_all
    try:
        yield
    finally:
        may_write.set()
        if _saving._last is not None:
            _saving._last.join()
        _writing.write_all = original


@ranks(1, 2, 3)
def test_every_so_many_commits_one_is_begun_and_the_newest_goes_on():
    folder, rank = shared_folder(), hvd.rank()
    keeper = Keeper(folder, every=2)
    loaded = {**state(-1), "sampler": Sampler()}
    assert keeper.resume(loaded) is None and loaded["batch"] == -1
    begun = []
    for commits in range(1, 6):
        begun.append(keeper.committed({**state(commits), "sampler": Sampler([commits, 10 + rank])}, commits))
        checkpoint.wait()
    assert begun == [False, True, False, True, False]
    assert Keeper(folder).resume(loaded) == 4  # of ranks that have just come
    assert loaded["batch"] == 4 and loaded["x"].eq(4).all()
    assert loaded["sampler"].processed_indices == {4, *(10 + each for each in range(hvd.size()))}
    hvd.barrier()
    remove(folder)


@ranks(2)
def test_one_rank_loads_alone():
    folder = shared_folder()
    keeper = Keeper(folder)
    for commits in (1, 2):
        assert keeper.committed(state(commits), commits)
        checkpoint.wait()
    if hvd.rank() == 1:  # the other calls nothing
        loaded = state(-1)
        assert Keeper(folder).resume(loaded, alone=True) == 2 and loaded["x"].eq(2).all()
        os.truncate(os.path.join(latest(folder), "state-00001-of-00002.safetensors"), 10)
        with pytest.warns(RuntimeWarning, match="a damaged checkpoint is passed over"):
            assert Keeper(folder).resume(loaded, alone=True) == 1
        assert loaded["batch"] == 1 and loaded["x"].eq(1).all()
    hvd.barrier()
    remove(folder)


@ranks(2)
def test_nobody_waits_for_one_that_is_written():
    folder = shared_folder()
    keeper = Keeper(folder, every=3, keep=None)
    with held_up() if hvd.rank() == 1 else contextlib.nullcontext():
        assert keeper.committed(state(3), 3)
        assert not keeper.committed(state(4), 4)  # it is not time
        assert not keeper.committed(state(6), 6)  # it is, and rank 1 writes
        assert not keeper.committed(state(7), 7)
    checkpoint.wait()
    assert keeper.committed(state(8), 8)  # as soon as nobody does
    checkpoint.wait()
    assert not keeper.committed(state(10), 10)
    loaded = state(-1)
    assert keeper.resume(loaded) == 8 and loaded["x"].eq(8).all()
    assert sorted(int(name.split("-")[2]) for name in os.listdir(folder) if name != "lock") == [3, 8]
    hvd.barrier()
    remove(folder)


@ranks(2)
def test_a_failure_is_an_error_at_first_and_a_warning_later():
    folder, rank = shared_folder(), hvd.rank()
    keeper = Keeper(folder)
    with raises(ValueError, "'f' is a builtin_function_or_method"):
        keeper.committed({**state(1), "f": print}, 1)
    assert keeper.committed(state(2), 2)
    checkpoint.wait()
    with pytest.warns(RuntimeWarning, match="was not made, and training goes on: 'f' is a builtin"):
        assert not keeper.committed({**state(3), "f": print}, 3)
    synced, os.fsync = os.fsync, fail if rank == 1 else os.fsync
    assert keeper.committed(state(4), 4)
    _saving._last.join()
    hvd.barrier()
    os.fsync = synced
    with pytest.warns(RuntimeWarning, match="the save of step 4 to .* failed: .*planted"):
        assert keeper.committed(state(5), 5)
    checkpoint.wait()
    assert latest(folder).step == 5
    hvd.barrier()
    remove(folder)


def fail(*_):
    raise OSError(errno.EIO, "planted")


@ranks(2)
def test_ranks_that_have_changed_begin_alike():
    folder = shared_folder()
    keeper = Keeper(folder, every=2)
    with held_up():
        assert keeper.committed(state(2), 2)
        assert not keeper.committed(state(4), 4)
        hvd.shutdown()
        hvd.init()
        if hvd.rank() == 1:
            keeper = Keeper(folder, every=2)  # in a process that has just come
        assert not keeper.committed(state(5), 5)
        assert not keeper.committed(state(6), 6)  # the thread of before writes still
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that of step 2 may be whole, or not: its ranks are not together any more
        assert keeper.committed(state(7), 7)
    checkpoint.wait()
    loaded = state(-1)
    assert keeper.resume(loaded) == 7 and loaded["x"].eq(7).all()
    hvd.barrier()
    remove(folder)


@pytest.mark.parametrize("every", [0, -1, True, 1.5, None])
def test_wrong_numbers(every):
    with raises(ValueError, "every="):
        Keeper("folder", every=every)
