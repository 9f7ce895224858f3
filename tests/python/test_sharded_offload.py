"""State of sharded optimizers in a file: the same numbers, little memory, errors of the disk."""

import errno
import gc
import os
import resource
import signal
import tempfile
import threading

import pytest
import rueda
import rueda.torch as hvd
import torch
from expect import eventually, raises
from rueda.torch.sharding import _file, _layout, _pages, load_plain
from test_sharded_checkpoint import remove, shared_folder
from test_sharded_optimizer import Model, check_alike, check_states, train, wrap
from worlds import ranks, run_ranks

WORLD = "torch"


@ranks(1, 2, 3)
def test_the_same_steps_as_in_memory():
    folder = shared_folder()
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad):
        for options in ({}, {"state_dtype": "int8"}, {"share": "host"}):
            whole, model = Model(), Model()
            inside = wrap(whole, kind, shard="state", **options)
            outside = wrap(model, kind, shard="gradients", offload=folder + "/", **options)
            for first in (0, 2):
                train(whole, inside, 2, first)
                train(model, outside, 2, first)
                check_alike(model, whole)
                check_states(outside.state_dict(), inside.state_dict())
                outside.save_state(folder + "/saved")
                check_states(load_plain(folder + "/saved"), inside.state_dict())
                outside.load_state(folder + "/saved")
                inside.load_state_dict(outside.state_dict())
    assert os.listdir(folder) == ["saved"]  # the files have no names
    remove(folder)


def many_batches():
    """A model whose parameters are in batches of their own: one is 1.6 MB of float32."""
    return torch.nn.Sequential(*(torch.nn.Linear(640, 640, bias=False) for _ in range(12)))


def steps(optimizer, model, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 640)).square().mean().backward()
        optimizer.step()


@ranks(2)
def test_at_most_three_batches_are_in_memory():
    folder, before = shared_folder(), _layout.BATCH_BYTES
    held, most = set(), [0]
    original = _file.Extent._read, _file.Extent._write

    def read(extent, writing):
        held.add((extent.offset, "read"))
        most[0] = max(most[0], len({offset for offset, _ in held}))
        return original[0](extent, writing)

    def write(extent, parts):
        held.add((extent.offset, "write"))
        most[0] = max(most[0], len({offset for offset, _ in held}))
        original[1](extent, parts)
        held.difference_update({(extent.offset, "write"), (extent.offset, "read")})

    model = many_batches()
    _layout.batches.__defaults__ = (1 << 20,)
    try:
        optimizer = wrap(model, torch.optim.Adam, shard="state", offload=folder)
    finally:
        _layout.batches.__defaults__ = (before,)
    assert len(optimizer._batches) == 12
    steps(optimizer, model, 2)
    _file.Extent._read, _file.Extent._write = read, write
    try:
        counts = [rueda.counters()["control_messages"]]
        steps(optimizer, model, 3)
        counts.append(rueda.counters()["control_messages"])
    finally:
        _file.Extent._read, _file.Extent._write = original
    assert counts[0] == counts[1]
    assert 2 <= most[0] <= 3, most
    assert not any(value.nbytes for parts in optimizer.state.values() for key, value in parts.items() if key != "step")
    remove(folder)


@ranks(2)
def test_an_error_of_the_disk_is_one_of_all_ranks():
    folder, model = shared_folder(), Model()
    with raises((NotADirectoryError, RuntimeError), "offload="):
        wrap(Model(), shard="state", offload=folder if hvd.rank() == 0 else folder + "/nowhere")
    with raises(ValueError, "offload=5"):
        wrap(Model(), shard="state", offload=5)
    optimizer = wrap(model, torch.optim.Adam, shard="state", offload=folder)
    start = optimizer.state_dict()
    optimizer.save_state(folder + "/saved")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hvd.rank() == 1:  # whose disk has no room
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with raises((OSError, RuntimeError), "File too large" if hvd.rank() == 1 else "rank 1 failed"):
            train(model, optimizer, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for begin_again in (lambda: optimizer.load_state_dict(start), lambda: optimizer.load_state(folder + "/saved")):
        with raises(RuntimeError, "an earlier step failed, begin again from a checkpoint"):
            train(model, optimizer, 1)
        begin_again()
        train(model, optimizer, 1)
        optimizer._failure = OSError("another")
    other = Model()
    optimizer = wrap(other, torch.optim.Adam, shard="state", offload=folder)
    train(other, optimizer, 2)
    original = os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if hvd.rank() == 1:  # while it writes behind
        os.pwrite = full
    try:
        with raises((OSError, RuntimeError), "No space left" if hvd.rank() == 1 else "rank 1 failed"):
            train(other, optimizer, 2)
    finally:
        os.pwrite = original
    remove(folder)


def open_files(folder):
    """This process's, in a folder; their names are gone."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.islink(link) and os.readlink(link).startswith(folder)]


@ranks(2)
def test_the_file_and_its_threads_go_with_the_optimizer():
    folder, model = shared_folder(), Model()
    for _ in range(3):
        optimizer = wrap(model, torch.optim.Adam, shard="state", offload=folder)
        train(model, optimizer, 1)
        assert len(open_files(folder)) == 1
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("rueda-offload")]
        assert threads
        del optimizer
        gc.collect()
        eventually(lambda: open_files(folder) == [])
        for thread in threads:
            thread.join()
    remove(folder)


def killed_while_state_is_out():
    hvd.init()
    rank, model = hvd.rank(), Model()
    folder = shared_folder()
    optimizer = wrap(model, torch.optim.Adam, shard="state", offload=folder)
    train(model, optimizer, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hvd.HorovodInternalError):
        train(model, optimizer, 2)
    assert os.listdir(folder) == []
    os.rmdir(folder)
    return {"rank": rank}


def test_a_rank_that_is_killed_leaves_no_file():
    outcome = run_ranks(2, killed_while_state_is_out, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    assert all("result" in line for line in outcome.reports[0].values()), outcome.reports


def resident(field):
    """Bytes of this process, as the kernel counts them."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def memory_of_a_training():
    """What the kernel sees of a rank: 24 batches whose state is 8 MiB each."""
    hvd.init()
    rank, folder, found = hvd.rank(), tempfile.mkdtemp(), {}
    _layout.batches.__defaults__ = (1 << 20,)
    for name, options in (("inside", {}), ("outside", {"offload": folder}), ("small", {"state_dtype": "int8"})):
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
        adam = torch.optim.Adam(model.parameters())
        optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), shard="state", **options)
        before = resident("RssAnon")
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 1024)).square().mean().backward()
            optimizer.synchronize()
            calm = resident("VmRSS")
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # forgets the peak
            with optimizer.skip_synchronize():
                optimizer.step()
            found[name, step] = resident("VmHWM") - calm
        _pages.trim()  # what Adam needed beside
        found[name, "state"] = resident("RssAnon") - before
        del model, adam, optimizer
        gc.collect()
    os.rmdir(folder)
    hvd.shutdown()
    batch = 8 << 20
    assert found["inside", "state"] > 22 * batch, found
    assert found["outside", "state"] < 4 * batch, found  # one may be still on its way out
    assert found["small", "state"] < 24 * batch * 0.27 + 2 * batch, found
    assert all(found["outside", step] < 7 * batch for step in range(3)), found  # three, and what Adam and malloc need beside
    return {"rank": rank}


def test_the_kernel_sees_as_little_memory():
    outcome = run_ranks(1, memory_of_a_training, manual=True, env={"OMP_NUM_THREADS": "1"})
    assert outcome.code == 0, (outcome.output, outcome.reports)
