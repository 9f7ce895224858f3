"""rueda.data without a job: the order, whose samples are whose, reading ahead, what goes wrong, what is left behind."""

import collections
import gc
import io
import itertools
import os
import signal
import subprocess
import sys
import tarfile
import threading
import traceback
import types
from fractions import Fraction

import numpy as np
import pytest
import rueda.data
from expect import eventually
from rueda.data import Arrays, DataError, DataLoader, Files, Parquet, WebDataset
from rueda.data._balance import shares_for
from rueda.data._deal import Deal, pieces
from rueda.data._order import Order, Permutation


def all_of(count, *seeds):
    return Permutation(count, *seeds)(np.arange(count)).tolist()


def given(loader):
    """Numbers of the samples that one loop over the loader of a range gives, by batch."""
    return [batch.tolist() for batch in loader]


def numbers(count):
    return Arrays(np.arange(count))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Every thread and process that a test's loaders have started is gone with them."""
    yield
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("rueda data")], names
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# The order.


@pytest.mark.parametrize("count", [1, 2, 3, 7, 63, 64, 65, 100, 1000, 4097])
def test_an_order_has_each_sample_once(count):
    assert sorted(all_of(count, 1, 2)) == list(range(count))


def test_the_order_is_written_down():
    """It may never change: a state of an older release would go on with other samples."""
    assert all_of(10, 0, 0) == ORDER_OF_10
    assert Permutation(10**15, 3, 4)([0, 1, 10**15 - 1]).tolist() == ORDER_OF_MANY
    blocked = Order(12, True, 5, 6, [3, 4, 1, 4], 2)(np.arange(12))
    assert blocked.tolist() == ORDER_IN_BLOCKS


ORDER_OF_10 = [9, 8, 2, 4, 1, 3, 0, 7, 5, 6]
ORDER_OF_MANY = [156522938572099, 596837538614161, 302336323428700]
ORDER_IN_BLOCKS = [8, 11, 2, 1, 10, 0, 9, 7, 5, 6, 4, 3]


def test_every_order_of_a_few_samples_comes_about_as_often():
    seen = collections.Counter(tuple(all_of(3, 1, epoch)) for epoch in range(300))
    expected = 300 / 6
    statistic = sum((count - expected) ** 2 / expected for count in seen.values())
    assert len(seen) == 6 and statistic < 20.5, statistic  # 5 degrees of freedom: 0.1 %


def test_each_sample_comes_to_each_place_about_as_often():
    count, epochs = 12, 1000
    seen = np.zeros((count, count))
    for epoch in range(epochs):
        seen[np.arange(count), all_of(count, 1, epoch)] += 1
    expected = epochs / count
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert statistic < 173.6, statistic  # 121 degrees of freedom: 0.1 %


def test_orders_differ_by_seed_and_epoch():
    orders = {tuple(all_of(50, seed, epoch)) for seed in range(-3, 10) for epoch in range(10)}
    assert len(orders) == 130


def test_a_part_of_an_order_is_that_part_of_the_whole():
    for order in (Order(300, True, 1, 2), Order(300, True, 1, 2, [7] * 42 + [6], 5), Order(300, False, 1, 2)):
        whole = order(np.arange(300))
        for begin in range(0, 300, 37):
            assert order(np.arange(begin, min(300, begin + 37))).tolist() == whole[begin : begin + 37].tolist()


def test_samples_of_blocks_stay_within_a_window():
    lengths = [5, 1, 9, 3, 3, 8, 2, 4]
    begins = np.cumsum([0, *lengths])
    for epoch in range(5):
        order = Order(35, True, 1, epoch, lengths, 3)(np.arange(35)).tolist()
        assert sorted(order) == list(range(35))
        blocks = [int(np.searchsorted(begins, sample, side="right")) for sample in order]
        place = 0
        windows = []
        while place < 35:
            window = set(blocks[place:])
            first = list(dict.fromkeys(blocks[place:]))
            window = next(set(first[:n]) for n in (3, 2, 1) if len(first) >= n)
            size = sum(lengths[block - 1] for block in window)
            assert set(blocks[place : place + size]) == window
            windows.append(window)
            place += size
        assert [len(window) for window in windows] == [3, 3, 2]


# Whose samples are whose.


def test_pieces_add_up_and_follow_the_shares():
    assert pieces(7, [4, 4]) == [4, 3] and pieces(1, [4, 4, 4]) == [1, 0, 0]
    assert pieces(12, [8, 4]) == [8, 4] and pieces(6, [8, 4]) == [4, 2] and pieces(5, [8, 4]) == [3, 2]
    for samples, shares in itertools.product(range(13), ([1], [3, 3, 3], [5, 1, 2], [0, 4])):
        if samples <= sum(shares):
            counts = pieces(samples, shares)
            assert sum(counts) == samples and all(abs(c - samples * s / sum(shares)) < 1 for c, s in zip(counts, shares))


@pytest.mark.parametrize("uneven", ["drop", "join"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_sample_comes_to_one_rank(size, uneven):
    for samples, consumed in itertools.product(range(1, 20), range(0, 20, 3)):
        deals = [Deal(samples, consumed, [2] * size, rank, uneven) for rank in range(size)]
        seen = []
        for step in range(deals[0].steps):
            for deal in deals:
                mine = deal.positions(step).tolist()
                assert bool(mine) == (step < deal.my_steps) and len(mine) == deal.counts(step)[deal._rank]
                assert uneven == "join" or len(mine) == 2
                seen += mine
            assert deals[0].consumed_after(step) == consumed + len(seen)
        left = max(0, samples - consumed)
        count = left if uneven == "join" else left // (2 * size) * 2 * size
        assert seen == list(range(consumed, consumed + count))
        assert all(deal.is_even == (len({d.my_steps for d in deals}) == 1) for deal in deals)


@pytest.mark.parametrize("shares", [[6, 2], [1, 1, 10], [5, 4, 3]])
def test_weighted_averages_over_ranks_are_those_of_even_shares_exactly(shares):
    values = [Fraction(n * n % 17) for n in range(31)]
    even = [sum(shares) // len(shares)] * len(shares)
    means = {}
    for dealt in (shares, even):
        deals = [Deal(31, 3, dealt, rank, "join") for rank in range(len(dealt))]
        means[tuple(dealt)] = found = []
        for step in range(deals[0].steps):
            counts = deals[0].counts(step)
            mine = [[values[place] for place in deal.positions(step)] for deal in deals]
            weights = [Fraction(count * len(counts), sum(counts)) for count in counts]
            found.append(sum(w * sum(v) / len(v) for w, v in zip(weights, mine) if v) / len(counts))
    assert means[tuple(shares)] == means[tuple(even)]


def test_shares_follow_speeds_within_their_bounds():
    assert shares_for([1.0, 1.0], 8, 8) == [4, 4] and shares_for([3.0, 1.0], 8, 8) == [6, 2]
    assert shares_for([3.0, 1.0], 8, 5) == [5, 3] and shares_for([1.0, 1e-9], 8, 8) == [7, 1]
    assert shares_for([2.0, 5.0, 3.0], 3, 1) == [1, 1, 1]
    for speeds in itertools.product((1.0, 1.5, 4.0), repeat=3):
        shares = shares_for(speeds, 12, 12)
        last = max(share / speed for share, speed in zip(shares, speeds))
        every = [s for s in itertools.product(range(1, 11), repeat=3) if sum(s) == 12]
        assert last == min(max(share / speed for share, speed in zip(s, speeds)) for s in every)


# Resuming.

COUNT, BATCH = 23, 2


def loaders(size, state=None, uneven="join", **options):
    """One for each of several ranks, that are played one after another."""
    made = [
        DataLoader(numbers(COUNT), BATCH, uneven=uneven, seed=9, place=(rank, size), prefetch=1, **options)
        for rank in range(size)
    ]
    for loader in made:
        if state is not None:
            loader.load_state_dict(state)
    return made


def steps_of(size, state=None, most=None, **options):
    """What all ranks get in each step together, and rank 0's state behind it."""
    ranks = loaders(size, state, **options)
    loops = [iter(loader) for loader in ranks]
    found = []
    while most is None or len(found) < most:
        batches = [next(loop, None) for loop in loops]
        if batches[0] is None:
            break
        together = [sample for batch in batches if batch is not None for sample in batch.tolist()]
        found.append((together, ranks[0].state_dict()))
    for loader in ranks:
        loader.close()
    return found


@pytest.mark.parametrize("before, after", list(itertools.product((1, 2, 3), repeat=2)))
def test_what_is_resumed_goes_on_as_if_nothing_had_been(before, after):
    """After each step of one number of ranks, with another number."""
    whole = [sample for together, _ in steps_of(1) for sample in together]
    assert sorted(whole) == list(range(COUNT))
    seen = []
    for together, state in steps_of(before):
        seen += together
        rest = [sample for others, _ in steps_of(after, state) for sample in others]
        assert seen + rest == whole


def test_numbers_of_ranks_may_change_again_and_again():
    whole = [sample for together, _ in steps_of(1) for sample in together]
    for sizes in itertools.product((1, 2, 3), repeat=3):
        seen, state = [], None
        for size in [*sizes, 2, 2, 2, 2, 2, 2]:
            found = steps_of(size, state, most=1)
            if not found:
                break
            seen += found[0][0]
            state = found[0][1]
        assert seen == whole[: len(seen)] and len(seen) >= COUNT - 3


def test_the_next_epoch_is_that_of_an_uninterrupted_run():
    one = loaders(1)[0]
    epochs = [given(one) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] and all(sorted(sum(epoch, [])) == list(range(COUNT)) for epoch in epochs)
    state = steps_of(1)[-1][1]
    assert (state["epoch"], state["consumed"]) == (0, COUNT)
    again = loaders(1, state)[0]
    assert [given(again), given(again), again.epoch] == [[], epochs[1], 2]


def test_a_loop_that_is_left_is_gone_on_with():
    loader = loaders(1)[0]
    whole = given(loaders(1)[0])
    seen = []
    while loader.epoch == 0:
        for batch in loader:
            seen.append(batch.tolist())
            if len(seen) % 3 == 0:
                break
    assert seen == whole


def test_dropping_leaves_whole_batches_alone():
    for size in (1, 2, 3):
        steps = steps_of(size, uneven="drop")
        assert all(len(together) == BATCH * size for together, _ in steps) and len(steps) == COUNT // (BATCH * size)
        whole = [sample for together, _ in steps_of(1) for sample in together]
        assert sum((together for together, _ in steps), []) == whole[: len(steps) * BATCH * size]


def test_without_shuffling_samples_come_as_they_are():
    assert given(DataLoader(numbers(5), 2, shuffle=False, uneven="join")) == [[0, 1], [2, 3], [4]]


def test_weights_make_the_average_over_ranks_that_over_samples():
    ranks = loaders(3)
    total = {}
    for loader in ranks:
        for step, batch in enumerate(loader):
            total[step] = total.get(step, 0) + loader.weight * batch.mean() / 3
    whole = [np.mean(together) for together, _ in steps_of(3)]
    np.testing.assert_allclose([total[step] for step in sorted(total)], whole)


def test_a_state_of_other_data_is_refused():
    state = DataLoader(numbers(10), 2).state_dict()
    for other, word in ((DataLoader(numbers(11), 2), "samples 10"), (DataLoader(numbers(10), 2, shuffle=False), "order 'shuffled'")):
        with pytest.raises(ValueError, match=word):
            other.load_state_dict(state)
    one, other = numbers(10), numbers(10)
    one.blocks, other.blocks = [5, 5], [4, 6]  # as of files that were written anew
    with pytest.raises(ValueError, match="order 'shuffled in 2 blocks, 1 at a time"):
        DataLoader(other, 2).load_state_dict(DataLoader(one, 2).state_dict())


def test_set_epoch_begins_another_and_goes_on_with_the_same():
    loader = DataLoader(numbers(8), 2)
    first = next(iter(loader)).tolist()
    loader.set_epoch(0)
    assert loader.consumed == 2
    loader.set_epoch(4)
    assert (loader.epoch, loader.consumed, len(loader)) == (4, 0, 4)
    loader.set_epoch(0)
    assert next(iter(loader)).tolist() == first


# Reading ahead.


class Watched:
    """A source that notes what was read and waits where a test says so."""

    def __init__(self, count):
        self.read, self.doors = [], collections.defaultdict(threading.Event)
        self.count, self.is_open = count, True

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not self.is_open:
            assert self.doors[index].wait(60)
        self.read.append(index)
        return index


def test_batches_are_read_while_the_step_before_runs_and_not_beyond_the_bound():
    source = Watched(20)
    loader = DataLoader(source, 1, shuffle=False, prefetch=3)
    for step, _ in enumerate(loader):
        # The step is under way: the next three come meanwhile, and no fourth can have begun.
        wanted = min(20, step + 4)
        eventually(lambda: len(source.read) >= wanted)
        assert source.read == list(range(wanted))


def test_workers_read_at_once_and_batches_stay_in_order():
    source = Watched(12)
    source.is_open = False
    loader = DataLoader(source, 1, shuffle=False, prefetch=3, workers=3)
    loop = iter(loader)
    for first in range(0, 12, 3):
        for step in (first + 2, first + 1):  # the later ones are there before the first
            source.doors[step].set()
            eventually(lambda: step in source.read)
        source.doors[first].set()
        assert [next(loop).item() for _ in range(3)] == [first, first + 1, first + 2]
    assert next(loop, None) is None


def test_without_prefetch_nothing_runs_in_the_background():
    source = Watched(4)
    for step, _ in enumerate(DataLoader(source, 1, shuffle=False, prefetch=0)):
        assert len(source.read) == step + 1
        assert threading.active_count() == 1 or not any("rueda data" in t.name for t in threading.enumerate())


def test_waiting_is_counted_and_what_was_read_ahead_is_none(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(rueda.data._waits, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def slow(sample):
        now[0] += 5
        return sample

    before = rueda.data.wait_seconds()
    assert given(DataLoader(numbers(3), 1, shuffle=False, transform=slow, prefetch=0)) == [[0], [1], [2]]
    assert rueda.data.wait_seconds() - before == 15
    loop = iter(DataLoader(numbers(3), 1, shuffle=False, transform=slow, prefetch=3))
    eventually(lambda: now[0] == 30)
    eventually(lambda: len(loop._reading._prefetch._done) == 3)
    assert [batch.item() for batch in loop] == [0, 1, 2] and rueda.data.wait_seconds() - before == 15


def test_a_batch_is_not_kept_by_the_loader():
    for options in ({}, {"prefetch": 0}, {"processes": True}):
        loop = iter(DataLoader(numbers(20), 2, **options))
        batch = next(loop)
        kept = [each for each in gc.get_referrers(batch) if each is not globals() and not isinstance(each, type(sys._getframe()))]
        assert not kept, kept


# Ends: every way out of a loop leaves nothing behind (see the fixture).


@pytest.mark.parametrize("options", [{}, {"workers": 3, "prefetch": 4}, {"processes": True, "workers": 2}], ids=str)
def test_loops_end_with_nothing_left(options):
    for _ in DataLoader(numbers(30), 2, **options):
        break
    with pytest.raises(ZeroDivisionError):
        for _ in DataLoader(numbers(30), 2, **options):
            1 / 0  # noqa: B018
    loader = DataLoader(numbers(30), 2, **options)
    first, second = iter(loader), iter(loader)
    next(second)
    with pytest.raises(RuntimeError, match="another loop has begun"):
        next(first)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="place has changed"):
        next(second)
    assert len(given(loader)) == 14 and len(given(loader)) == 15


def test_a_loop_that_is_only_left_behind_at_exit_is_no_hang():
    program = (
        "import numpy, rueda.data as d\n"
        "loop = iter(d.DataLoader(d.Arrays(numpy.arange(100)), 2, processes=True, workers=2))\n"
        "print(next(loop).shape, loop._reading._processes[0]._process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("(2,)")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[-1]), 0)


def test_workers_of_a_killed_process_end():
    program = (
        "import numpy, os, sys, rueda.data as d\n"
        "loop = iter(d.DataLoader(d.Arrays(numpy.arange(100)), 2, processes=True, workers=2))\n"
        "next(loop); print(*(each._process.pid for each in loop._reading._processes), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    for pid in done.stdout.split():
        eventually(lambda: not is_running(int(pid)))


def test_a_forked_process_leaves_the_loops_of_its_parent_alone():
    loader = DataLoader(numbers(40), 2, processes=True, prefetch=1)
    loop = iter(loader)
    next(loop)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="begun in another process"):
                next(loop)
            del loop
            loader.close()
            assert len(given(DataLoader(numbers(4), 2))) == 2
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(loop)) == 19


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Locked(list):
    """A source with a lock, as those of files have, that another thread may hold when a process is forked."""

    def __init__(self, samples):
        super().__init__(samples)
        self.forked()

    def forked(self):
        self.lock = threading.Lock()

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


def test_locks_that_are_held_while_a_process_is_forked_are_not_its_own():
    source = Locked(range(4))
    with source.lock:
        assert given(DataLoader(source, 2, shuffle=False, processes=True)) == [[0, 1], [2, 3]]


# Errors.


def fails_at_5(sample):
    if sample == 5:
        raise KeyError("five")
    return sample


@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"processes": True}], ids=str)
def test_an_exception_comes_to_the_loop_with_its_traceback(options):
    loader = DataLoader(numbers(12), 2, shuffle=False, transform=fails_at_5, **options)
    loop = iter(loader)
    seen = []
    with pytest.raises(KeyError, match="five") as caught:
        for batch in loop:
            seen.append(batch.tolist())
    # At once, though the loop and its traceback are still here.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rueda data")]
    assert seen == [[0, 1], [2, 3]] and loader.consumed == 4
    text = "".join(traceback.format_exception(caught.value))
    assert "in fails_at_5" in text and ("in sample 5 of Arrays" in text or sys.version_info < (3, 11))
    with pytest.raises(KeyError):
        next(iter(loader))


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raises_odd(sample):
    raise Odd("this", "that")


def test_an_exception_that_cannot_be_sent_is_told():
    with pytest.raises(DataError, match="has raised Odd: this and that") as caught:
        next(iter(DataLoader(numbers(4), 2, transform=raises_odd, processes=True)))
    assert "in raises_odd" in str(caught.value.__cause__)


def killed_at_5(sample):
    if sample == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_killed_worker_is_named():
    loader = DataLoader(numbers(12), 2, shuffle=False, transform=killed_at_5, processes=True)
    loop = iter(loader)
    assert [next(loop).tolist(), next(loop).tolist()] == [[0, 1], [2, 3]]
    pid = loop._reading._processes[0]._process.pid
    with pytest.raises(DataError, match=rf"worker 0 \(pid {pid}\) was killed by signal 9 \(SIGKILL\) while it read samples 4, 5; .*memory"):
        next(loop)


def test_wrong_arguments_say_what_to_do():
    for wrong, words in (
        ({"uneven": "pad"}, 'expected "drop" or "join"'),
        ({"to": "mxnet"}, '"numpy", "torch" or "jax"'),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"workers": 0}, "workers=0"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"prefetch": 0, "processes": True}, "prefetch=1"),
        ({"place": (0, 11)}, "10 samples for 11 ranks"),
        ({"place": (0, 6)}, "all would be dropped"),
    ):
        with pytest.raises(ValueError) as caught:
            DataLoader(numbers(10), 2, **wrong)
        assert words in str(caught.value), caught.value
    assert DataLoader(numbers(10), np.int64(2), seed=np.int32(3)).state_dict()["seed"] == 3
    with pytest.raises(ValueError, match="batch_size=0"):
        DataLoader(numbers(10), 0)
    with pytest.raises(ValueError, match="is empty"):
        DataLoader(numbers(0), 2)
    with pytest.raises(TypeError, match="no source"):
        DataLoader(iter([1]), 2)
    with pytest.raises(TypeError, match="state_dict"):
        __import__("pickle").dumps(DataLoader(numbers(10), 2))
    with pytest.raises(ValueError, match=r"they have \[2, 3\]"):
        Arrays([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="all by position"):
        Arrays()


# Batches.


class Listed(list):
    """A source of any samples."""


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("processes", [False, True])
def test_batches_have_the_shape_of_samples(processes):
    samples = Listed({"x": np.full((2, 3), n, np.float32), "n": (n, n > 1), "name": str(n), "raw": b"r", "p": Pair(n, 0.5)} for n in range(4))
    batch = next(iter(DataLoader(samples, 4, shuffle=False, processes=processes)))
    assert batch["x"].shape == (4, 2, 3) and batch["x"].dtype == np.float32 and batch["x"].flags.writeable
    assert batch["x"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert batch["n"][0].tolist() == [0, 1, 2, 3] and batch["n"][1].tolist() == [False, False, True, True]
    assert batch["name"] == ["0", "1", "2", "3"] and batch["raw"] == [b"r"] * 4
    assert isinstance(batch["p"], Pair) and batch["p"].right.dtype == np.float64


def test_samples_that_differ_are_told():
    for samples, words in (
        ([np.zeros(2), np.zeros(3)], "shapes, (2,) and (3,)"),
        ([{"a": 1}, {"b": 1}], "keys, ['a'] and ['b']"),
        ([(1, 2), (1,)], "lengths, 2 and 1"),
    ):
        with pytest.raises(ValueError) as caught:
            next(iter(DataLoader(Listed(samples), 2, shuffle=False)))
        assert words in str(caught.value) and "collate=" in str(caught.value)
        text = "".join(traceback.format_exception(caught.value))
        assert "samples 0, 1 of" in text or sys.version_info < (3, 11)
    loader = DataLoader(Listed([[1], [2, 3]]), 2, shuffle=False, collate=lambda samples: sum(samples, []))
    assert next(iter(loader)) == [1, 2, 3]


def test_a_source_that_reads_by_the_batch_is_asked_so():
    class Source(list):
        def __getitems__(self, indices):
            return [self[index] * 10 for index in indices]

    assert given(DataLoader(Source(range(4)), 2, shuffle=False)) == [[0, 10], [20, 30]]


def test_arrays_by_name_and_mapped_from_a_file(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
    source = Arrays(x=np.load(tmp_path / "x.npy", mmap_mode="r"), y=np.array(list("abcdef"), object))
    batch = next(iter(DataLoader(source, 3, shuffle=False)))
    assert batch["x"].tolist() == [[0, 1], [2, 3], [4, 5]] and batch["y"] == ["a", "b", "c"]
    assert source[1]["x"].tolist() == [2, 3]


# Files.


def write(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_files_of_a_directory_are_samples(tmp_path):
    write(tmp_path, ["b/2.txt", "a/1.txt", "a/.hidden.txt", ".git/x.txt", "c.jpg", "a/deep/3.txt"])
    source = Files(tmp_path, ".txt")
    assert source.paths == [str(tmp_path / name) for name in ("a/1.txt", "a/deep/3.txt", "b/2.txt")]
    assert next(iter(DataLoader(source, 3, shuffle=False))) == [b"a/1.txt", b"a/deep/3.txt", b"b/2.txt"]
    assert len(Files(tmp_path)) == 4
    assert Files([tmp_path / "c.jpg"], read=os.path.getsize)[0] == 5


def test_directories_and_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path}: no files that end with .png or .jpg"):
        Files(tmp_path, (".png", ".jpg"))
    with pytest.raises(ValueError, match="no files are given"):
        Files([])
    with pytest.raises(DataError, match=rf"rank 0 cannot list {tmp_path}/none: .*No such file"):
        Files(tmp_path / "none")
    write(tmp_path, ["1", "2"])
    source = Files(tmp_path)
    (tmp_path / "2").unlink()
    with pytest.raises(DataError, match=rf"{tmp_path}/2 \(sample 1\) cannot be read: .*No such file"):
        list(DataLoader(source, 1, shuffle=False))


# Parquet.


def parquet(folder, rows=(10, 7), group=3):
    """Files whose column n counts all rows."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    begin = 0
    for number, count in enumerate(rows):
        n = np.arange(begin, begin + count)
        table = arrow.table({"n": n, "name": [f"s{i}" for i in n], "v": [[i, i + 0.5] for i in n], "half": n.astype(np.float32) / 2})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=group)
        begin += count
    return folder


def test_rows_of_parquet_files_are_samples(tmp_path):
    source = Parquet(parquet(tmp_path), window=2)
    assert len(source) == 17 and source.blocks == [3, 3, 3, 1, 3, 3, 1]
    assert source[11]["n"] == 11 and source[11]["name"] == "s11" and source[16]["v"].tolist() == [16, 16.5]
    seen = []
    for batch in DataLoader(source, 4, uneven="join", seed=3):
        n = batch["n"].tolist()
        assert batch["half"].dtype == np.float32 and batch["half"].tolist() == [i / 2 for i in n]
        assert batch["name"] == [f"s{i}" for i in n] and batch["v"].tolist() == [[i, i + 0.5] for i in n]
        seen += n
    assert sorted(seen) == list(range(17)) and seen != sorted(seen)
    for options in ({}, {"processes": True}):
        by_sample = DataLoader(source, 4, uneven="join", seed=3, transform=lambda sample: sample["n"], **options)
        assert sum(given(by_sample), []) == seen
    assert set(next(iter(DataLoader(Parquet(tmp_path, columns=["n"]), 2)))) == {"n"}


def test_each_row_group_is_decoded_once_an_epoch(tmp_path):
    source = Parquet(parquet(tmp_path, rows=(200, 200), group=20), window=3)
    decoded = []
    decode = source._decoded
    source._decoded = lambda number, index: decoded.append(number) or decode(number, index)
    seen = [n for batch in DataLoader(source, 5, workers=2) for n in batch["n"].tolist()]
    assert sorted(seen) == list(range(400)) and sorted(decoded) == list(range(20))


def test_damaged_parquet_files_are_named(tmp_path):
    parquet(tmp_path)
    with pytest.raises(DataError, match=r"0.parquet: no column nn; there are n, name"):
        Parquet(tmp_path, columns=["nn"])
    path = tmp_path / "1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1.parquet: .*[Pp]arquet"):
        Parquet(tmp_path)
    path.write_bytes(b"PAR1" + b"\xff" * 300 + whole[304:])
    source = Parquet(tmp_path)
    with pytest.raises(DataError, match=r"1.parquet: row group 0 \(samples 10 to 12\), in which sample 10 is, cannot be read"):
        list(DataLoader(source, 1, shuffle=False))
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"n": ["text"]}), path)
    with pytest.raises(ValueError, match="other columns in .*1.parquet"):
        Parquet(tmp_path)


# Tar archives.


def tar(path, names, contents=None):
    with tarfile.open(path, "w") as archive:
        for name in names:
            data = (contents or str)(name).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


NAMES = ["a/7.jpg", "a/7.cls", "a/8.seg.PNG", "a/8.cls", "a/8.jpg", "__meta__/x.txt", "readme", "b.x/9.jpg"]


def test_samples_of_tar_archives_are_webdatasets(tmp_path):
    tar(tmp_path / "0.tar", NAMES)
    tar(tmp_path / "1.tar", [f"{n:03}.txt" for n in range(5)])
    source = WebDataset(tmp_path)
    assert len(source) == 8
    webdataset = pytest.importorskip("webdataset")
    theirs = list(webdataset.WebDataset([str(path) for path in source.paths], shardshuffle=False))
    for mine, other in zip(source, theirs):
        other.pop("__local_path__", None)
        assert mine == other
    assert len(theirs) == len(source)
    decoded = WebDataset(tmp_path, decode=webdataset.autodecode.Decoder([]))
    assert decoded[4]["txt"] == "001.txt"


def test_samples_of_tar_archives_are_shuffled_as_a_whole_and_read_in_processes(tmp_path):
    for shard in range(3):
        tar(tmp_path / f"{shard}.tar", [f"{shard}-{n}.txt" for n in range(6)])
    for options in ({"workers": 3, "prefetch": 4}, {"processes": True}):
        loader = DataLoader(WebDataset(tmp_path), 4, uneven="join", **options)
        seen = [text.decode() for batch in loader for text in batch["txt"]]
        assert sorted(seen) == [f"{shard}-{n}.txt" for shard in range(3) for n in range(6)]
        assert len({text[0] for text in seen[:6]}) > 1


def test_many_archives_do_not_take_all_file_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(rueda.data._webdataset, "_OPEN_FILES", 3)
    for shard in range(20):
        tar(tmp_path / f"{shard:02}.tar", [f"{shard}-{n}.txt" for n in range(3)])
    source = WebDataset(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    seen = [text for batch in DataLoader(source, 4, workers=4, prefetch=4) for text in batch["txt"]]
    assert len(set(seen)) == 60 and len(os.listdir("/proc/self/fd")) <= before + 3


def test_damaged_archives_are_named(tmp_path):
    path = tar(tmp_path / "0.tar", ["a.txt", "b.txt", "c.txt"])
    whole = path.read_bytes()
    for damaged, words in (
        (whole[:1300], "behind 'a.txt'"),  # in a header
        (whole[:2560], "behind 'c.txt'"),
        (whole[:1024] + b"\xff" * 512 + whole[1536:], "behind 'a.txt'"),
        (whole[:3072], "behind 'c.txt'"),  # without an end
        (b"", "behind its beginning"),
        (__import__("gzip").compress(whole), "behind its beginning"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            WebDataset(tmp_path)
        assert f"{path}: not a whole, uncompressed tar archive" in str(caught.value) and words in str(caught.value), caught.value
    path.write_bytes(whole)
    source = WebDataset(tmp_path)
    path.write_bytes(whole[:2100])  # while it is used
    with pytest.raises(DataError, match=rf"{path}: 'c' \(sample 2\) cannot be read: the file ends before its data, which go to byte 2565"):
        list(DataLoader(source, 1, shuffle=False))
    tar(path, ["a.txt", "a.txt"])
    with pytest.raises(DataError, match="'a' has two files that end with .txt"):
        WebDataset(tmp_path)
    tar(path, ["readme"])
    with pytest.raises(DataError, match="no samples in it"):
        WebDataset(tmp_path)

    def decode(sample):
        raise ValueError("no picture")

    tar(path, ["a.txt"])
    with pytest.raises(DataError, match=rf"{path}: 'a' \(sample 0\) cannot be read: no picture"):
        WebDataset(tmp_path, decode=decode)[0]


# Frameworks.


def test_importing_it_imports_no_library():
    program = (
        "import sys, rueda.data\n"
        "print([n for n in ('numpy', 'torch', 'jax', 'keras', 'pyarrow', 'webdataset') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name, call", [
    ("torch", lambda: DataLoader(numbers(4), 2, to="torch")),
    ("jax", lambda: DataLoader(numbers(4), 2, to="jax")),
    ("keras", lambda: DataLoader(numbers(4), 2).keras()),
    ("pyarrow", lambda: Parquet(["x.parquet"])),
])
def test_what_is_not_installed_is_named(name, call, monkeypatch):
    for module in [each for each in sys.modules if each.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Without(name), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"needs {name}, which this Python has not: pip install {name}"):
        call()


class Without:
    """Finds a package not to be there."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
