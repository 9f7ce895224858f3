"""rueda.data on real ranks: who reads what, who lists, what is shared, where training goes on; each framework."""

import contextlib
import importlib.util
import os
import pathlib
import re
import sys

import numpy as np
import pytest
import rueda as hvd
import rueda.data
import timelines
from expect import eventually, is_shared, raises
from rueda.data import Arrays, DataError, DataLoader, Files, Parquet, WebDataset
from test_data import given, numbers, parquet, tar, write
from worlds import launch, ranks, results, run_ranks

WORLD = "torch"
HAS_PARQUET = importlib.util.find_spec("pyarrow") is not None
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_data.py"


def everybodys(batches):
    """The samples of all ranks' batches of a loop, step by step."""
    every = hvd.allgather_object(batches)
    return [sum((mine[step] for mine in every if step < len(mine)), []) for step in range(max(map(len, every)))]


@ranks(1, 2, 3)
def test_ranks_deal_each_sample_out_once_and_resume_in_the_middle():
    whole = [sample for batch in given(DataLoader(numbers(50), 7, seed=4, uneven="join", place=(0, 1))) for sample in batch]
    loader = DataLoader(numbers(50), 3, seed=4, uneven="join")
    assert sum(everybodys(given(loader)), []) == whole and loader.epoch == 1
    hvd.allreduce(np.ones(1))  # who has joined is back

    loader = DataLoader(numbers(50), 3, seed=4, uneven="join")
    before = []
    for batch in loader:
        before.append(batch.tolist())
        state = loader.state_dict()
        if len(before) == 2:
            break
    again = DataLoader(numbers(50), 5, seed=0, uneven="join")
    again.load_state_dict(state)
    assert sum(everybodys(before), []) + sum(everybodys(given(again)), []) == whole


@ranks(3)
def test_members_of_a_process_set_deal_among_themselves():
    pair = hvd.add_process_set([0, hvd.size() - 1])
    if pair.included():
        loader = DataLoader(numbers(9), 2, process_set=pair, uneven="join", seed=1)
        mine = given(loader)
        every = hvd.allgather_object(mine, process_set=pair)
        assert sorted(sum(every[0] + every[1], [])) == list(range(9)) and abs(len(every[0]) - len(every[1])) <= 1
    else:
        with raises(ValueError, "not a member"):
            DataLoader(numbers(9), 2, process_set=pair)
    hvd.remove_process_set(pair)
    with raises(ValueError, "does not exist"):
        DataLoader(numbers(9), 2, process_set=pair)


@ranks(2, 3)
def test_ranks_that_would_read_different_data_are_told_at_once():
    rank = hvd.rank()
    with raises(DataError, "seed is 1 on rank 1 and 0 on rank 0"):
        iter(DataLoader(numbers(20), 2, seed=min(rank, 1)))
    with raises(DataError, "samples is 21 on rank 1 and 20 on rank 0"):
        iter(DataLoader(numbers(20 + (rank == 1)), 2))
    iter(DataLoader(numbers(20 + (rank == 1)), 2, place=(0, 1))).close()


@ranks(2)
def test_uneven_ends_join_and_weights_give_the_gradient_of_the_whole_step():
    """Training on two ranks is that of one process on both ranks' samples, the last step included, of which one has none."""
    import rueda.torch as hvt
    import torch

    x, y = np.random.default_rng(1).normal(size=(25, 3)).astype(np.float32), np.arange(25, dtype=np.float32)

    def model():
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 1).double()
        return layer, torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.5)

    def train(loader, layer, optimizer):
        for _ in range(2):
            for xs, ys in loader:
                optimizer.zero_grad()
                loss = ((layer(xs.double()).squeeze(1) - ys.double()) ** 2).mean() * loader.weight
                loss.backward()
                optimizer.step()
            if loader.joined is not None:
                assert loader.joined == 0
                hvt.broadcast_parameters(layer.state_dict(), loader.joined)
                hvt.broadcast_optimizer_state(optimizer, loader.joined)

    alone, plain = model()
    train(DataLoader(Arrays(x, y), 8, uneven="join", to="torch", seed=2, place=(0, 1)), alone, plain)
    together, plain = model()
    loader = DataLoader(Arrays(x, y), 4, uneven="join", to="torch", seed=2)
    train(loader, together, hvt.DistributedOptimizer(plain, together.named_parameters()))
    for mine, theirs in zip(together.parameters(), alone.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@ranks(2)
def test_batches_lie_in_shared_memory_and_their_memory_comes_back():
    in_use = hvd.counter("heap_in_use")
    source = Arrays(np.arange(1 << 16, dtype=np.float32).reshape(64, 1024))
    for options in ({}, {"processes": True}, {"prefetch": 0}):
        loader = DataLoader(source, 8, **options)
        for step, batch in enumerate(loader):
            assert is_shared(batch.ctypes.data), options
            if step == 2:
                total = hvd.allreduce(batch, op=hvd.Sum)  # without a copy
                assert total.shape == (8, 1024)
                break
        del batch
        loop = iter(loader)
        del total
        ahead = loop._reading._prefetch
        eventually(lambda: ahead is None or ahead._done)  # noqa: B023
        loader.close()
        assert hvd.counter("heap_in_use") == in_use, (options, loop)
    assert not is_shared(next(iter(DataLoader(source, 8, shared=False))).ctypes.data)


def test_where_shared_memory_is_used_up_batches_are_private():
    assert results(run_ranks(1, reads_more_than_there_is, env={"RUEDA_HEAP_BYTES": str(1 << 20)})) == ["FFF"]


def reads_more_than_there_is():
    source = Arrays(np.zeros((6, 1 << 20)))
    kept = list(DataLoader(source, 2))
    assert all(batch.shape == (2, 1 << 20) for batch in kept)
    return "".join("T" if is_shared(batch.ctypes.data) else "F" for batch in kept)


def folder_of(name):
    """A folder that all ranks of this world know."""
    import tempfile

    path = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    return pathlib.Path(path) / name


@ranks(1, 2, 3)
def test_one_rank_lists_a_directory_and_each_footer_and_archive_is_read_by_one():
    """What os.scandir and the readers are asked, counted on all ranks."""
    import rueda.data._webdataset as tars

    folder = folder_of("data")
    if hvd.rank() == 0:
        write(folder, ["texts/a/1.txt", "texts/2.txt"])
        (folder / "tars").mkdir()
        for shard in range(5):
            tar(folder / "tars" / f"{shard}.tar", [f"{shard}-{n}.txt" for n in range(4)])
        if HAS_PARQUET:
            (folder / "tables").mkdir()
            parquet(folder / "tables", rows=(6, 5, 4))
    hvd.barrier()
    listed, indexed = [], []
    scandir, index, footer = os.scandir, tars._index, Parquet._footer
    os.scandir = lambda path: listed.append(str(path)) or scandir(path)
    tars._index = lambda path: indexed.append(path) or index(path)
    Parquet._footer = lambda self, path: indexed.append(path) or footer(self, path)
    try:
        sources = [Files(folder / "texts"), WebDataset(folder / "tars")]
        if HAS_PARQUET:
            sources.append(Parquet(folder / "tables"))
    finally:
        os.scandir, tars._index, Parquet._footer = scandir, index, footer
    assert [len(source) for source in sources] == [2, 20, 15][: len(sources)]
    assert len(listed) == (len(sources) + 1 if hvd.rank() == 0 else 0), listed
    every = hvd.allgather_object(indexed)
    assert sorted(sum(every, [])) == sorted(sum((source.paths for source in sources[1:]), []))
    assert max(map(len, every)) - min(map(len, every)) <= 2
    texts = [text.decode() for batch in DataLoader(sources[1], 2, uneven="join") for text in batch["txt"]]
    assert sorted(sum(hvd.allgather_object(texts), [])) == sorted(f"{shard}-{n}.txt" for shard in range(5) for n in range(4))
    assert rueda.data.index_seconds() > 0


@ranks(2, 3)
def test_what_one_rank_finds_wrong_is_told_to_all():
    folder = folder_of("tars")
    if hvd.rank() == 0:
        folder.mkdir()
        for shard in range(4):
            tar(folder / f"{shard}.tar", ["a.txt", "b.txt"])
        damaged = folder / "1.tar"
        damaged.write_bytes(damaged.read_bytes()[:1300])
    hvd.barrier()
    with raises(DataError, "1.tar: not a whole", "(rank 1 has looked)"):
        WebDataset(folder)
    with raises(DataError, "rank 0 cannot list", "none"):
        Files(folder / "none")
    with raises(ValueError, "no files that end with .png"):
        Files(folder, ".png")
    hvd.allreduce(np.ones(1))


@ranks(2)
def test_an_elastic_state_keeps_the_loaders_place():
    import rueda.torch as hvt

    loader = DataLoader(numbers(24), 2, seed=hvd.rank())
    state = hvt.elastic.TorchState(loader=loader, steps=0)
    assert state._depends_on_ranks()
    state.sync()  # rank 0's seed, too
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        state.steps += 1
        if state.steps % 2:
            state.save()
        if state.steps == 4:
            break
    loop = iter(loader)
    state.restore()
    assert (loader.consumed, state.steps) == (12, 3)
    with raises(RuntimeError, "place has changed"):
        next(loop)
    state.on_reset()
    rest = given(loader)
    whole = given(DataLoader(numbers(24), 4, seed=0, place=(0, 1)))
    assert everybodys(seen[:3] + rest) == whole


@ranks(2)
def test_balance_moves_samples_to_fast_ranks_and_changes_no_result():
    """Rank 0 is three times as fast, by a clock of the test's own."""
    x = np.random.default_rng(1).normal(size=(40, 3))
    seen = []

    def train(loader, balance=contextlib.nullcontext()):
        w = np.zeros(3)
        for _ in range(3):
            for batch in loader:
                with balance:
                    gradient = (2 * batch * (batch @ w - 1)[:, None]).mean(0) * loader.weight
                    now[0] += len(batch) * (1 if hvd.rank() == 0 else 3)
                w -= 0.1 * hvd.allreduce(gradient, name="gradient")
                seen.append(len(batch))
        return w

    now = [0.0]
    plain = train(DataLoader(Arrays(x), 4, seed=3))
    loader = DataLoader(Arrays(x), 4, seed=3)
    balance = hvd.balance(loader)
    balance._clock = lambda: now[0]
    seen.clear()
    np.testing.assert_allclose(train(loader, balance), plain, rtol=1e-13)
    assert balance.shares == [6, 2] and seen == [4] * 5 + [6, 2][hvd.rank() : hvd.rank() + 1] * 10
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    assert balance.shares == [4, 4]  # there may be ranks now that have measured nothing
    with raises(ValueError, "loops of your own"):
        loader.keras()
    with raises(ValueError, "ranks [0, 1] have measured nothing"):
        given(loader)
    with raises(ValueError, "place="):
        rueda.data.balance(DataLoader(Arrays(x), 4, place=(0, 1)))


@pytest.mark.parametrize("size, options", [(2, ("--min-np", "1", "--on-failure", "shrink")), (3, ("--min-np", "2"))])
def test_an_elastic_job_whose_ranks_change_trains_on_each_sample_once(size, options, tmp_path):
    files, folder = tmp_path / "files", tmp_path / "told"
    folder.mkdir()
    write(files, [f"{number:02}" for number in range(60)])
    script = pathlib.Path(__file__).with_name("data_elastic_script.py")
    code, output = launch(3, [sys.executable, script, files, folder, str(size)], options=options)
    assert code == 0, output
    story = {}  # step: size: rank: samples
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            epoch, step, ranks_, rank, *samples = map(int, line.split())
            story.setdefault((epoch, step), {}).setdefault(ranks_, {})[rank] = samples
    seen, sizes = {}, []
    for epoch, step in sorted(story):
        ranks_ = min(story[epoch, step])  # a step that comes again counts as it was made last
        sizes.append(ranks_)
        seen.setdefault(epoch, []).extend(sum((story[epoch, step][ranks_][rank] for rank in range(ranks_)), []))
    assert sizes[0] == 3 and 2 in sizes and sizes[-1] == size, sizes
    everything = DataLoader(numbers(60), 60, seed=6, place=(0, 1))
    for epoch in sorted(seen):
        whole = given(everything)[0]
        assert seen[epoch] == whole[: len(seen[epoch])] and len(seen[epoch]) > 54, epoch


def test_an_elastic_job_is_told_that_joining_is_not_for_it():
    assert results(run_ranks(1, joins_in_an_elastic_job, options=("--min-np", "1"))) == [True]


def joins_in_an_elastic_job():
    with raises(ValueError, "elastic job", 'uneven="drop"'):
        iter(DataLoader(numbers(8), 2, uneven="join"))
    return True


@ranks(1, 2)
def test_a_checkpoint_has_the_loaders_place():
    from rueda.torch import checkpoint

    folder = str(folder_of("checkpoint"))
    loader, counter = DataLoader(numbers(24), 2, seed=8), {"steps": 0}
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        counter["steps"] += 1
        if len(seen) == 3:
            checkpoint.save(folder, {"data": loader, "counter": counter}, step=3)
            checkpoint.wait()
            break
    again = DataLoader(numbers(24), 2)
    assert checkpoint.resume(folder, {"data": again, "counter": {"steps": 0}}) == 3
    assert everybodys(seen + given(again)) == everybodys(given(DataLoader(numbers(24), 2, seed=8)))


@ranks(2)
def test_torch_data_sets_are_sources_and_batches_tensors():
    import torch

    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    for batch in DataLoader(data, 3, to="torch", processes=True):
        x, y = batch
        assert x.dtype == torch.float32 and y.dtype == torch.int64 and (x[:, 0] == 2 * y).all()
        assert is_shared(x.data_ptr())
        x += 1


def test_jax_trains_and_resumes():
    pytest.importorskip("jax")
    first, second = results(run_ranks(2, trains_with_jax))
    assert first == second


def trains_with_jax():
    import jax
    import jax.numpy as jnp
    import rueda.jax as hvx

    x = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    source = Arrays(x, x @ np.arange(4, dtype=np.float32))

    @jax.jit
    def step(w, xs, ys):
        loss, gradient = hvx.value_and_grad(lambda w: ((xs @ w - ys) ** 2).mean())(w)
        return w - 0.05 * gradient

    def train(loader, w, epochs, most=1 << 30):
        for _ in range(loader.epoch, epochs):
            for xs, ys in loader:
                assert isinstance(xs, jax.Array)
                w, most = step(w, xs, ys), most - 1
                if not most:
                    return w
        return w

    whole = train(DataLoader(source, 3, to="jax", seed=5), jnp.zeros(4), 3)
    loader = DataLoader(source, 3, to="jax", seed=5)
    w = train(loader, jnp.zeros(4), 3, 9)
    again = DataLoader(source, 3, to="jax", workers=2)
    again.load_state_dict(loader.state_dict())
    w = train(again, w, 3)
    assert (np.asarray(w) == np.asarray(whole)).all()
    return np.asarray(w).tolist()


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
@pytest.mark.slow
def test_keras_trains_and_resumes(backend):
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    first, second = results(run_ranks(2, trains_with_keras, env=env))
    assert first == second


def trains_with_keras():
    import keras
    import rueda.keras as hvk

    x = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    source = Arrays(x, x.sum(1, keepdims=True))
    given_out = []

    def made(**options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(1)])  # built by fit, which looks at the data for it
        model.compile(hvk.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
        return model, DataLoader(source, 3, seed=5, **options)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            given_out.append(self.loader.state_dict())
            if len(given_out) == 9:
                self.weights = [np.array(weight) for weight in self.model.get_weights()]

    model, loader = made()
    data, follow = loader.keras()
    stop = Stop()
    stop.loader = loader
    model.fit(data, epochs=3, callbacks=[follow, stop], shuffle=False, verbose=0)
    assert (loader.epoch, loader.consumed) == (3, 0) and len(given_out) == 18
    assert [state["consumed"] for state in given_out[:7]] == [6, 12, 18, 24, 30, 36, 6]

    again, loader = made(workers=2, prefetch=3)
    loader.load_state_dict(given_out[8])
    assert (loader.epoch, loader.consumed) == (1, 18)
    data, follow = loader.keras()
    again.build((None, 4))
    again.set_weights(stop.weights)
    for epoch in range(loader.epoch, 3):
        again.fit(data, initial_epoch=epoch, epochs=epoch + 1, callbacks=[follow], shuffle=False, verbose=0)
    for mine, theirs in zip(again.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(mine, theirs)

    loader.load_state_dict(given_out[8])
    with raises(ValueError, "fit() once for each epoch"):
        again.fit(data, initial_epoch=1, epochs=3, callbacks=[follow], shuffle=False, verbose=0)
    _, loader = made()
    data, follow = loader.keras()
    with raises(Exception, "fit(shuffle=False)"):  # TensorFlow makes an error of its own of it
        again.fit(data, epochs=5, callbacks=[follow], shuffle=True, verbose=0)
    with raises(ValueError, 'uneven="drop"'):
        DataLoader(source, 3, uneven="join").keras()
    return [np.asarray(weight).tolist() for weight in model.get_weights()]


def test_the_example_resumes_where_it_was_stopped(tmp_path):
    """As a user runs it: the loss of the last epochs and the parameters are those of a run that was not stopped."""
    command = [sys.executable, EXAMPLE, "--data", tmp_path / "data", "--epochs", "3"]
    code, whole = launch(2, command)
    assert code == 0, whole
    losses = re.findall(r"epoch \d/3 loss (\d\.\d+)", whole)
    assert len(losses) == 3 and float(losses[2]) < float(losses[0]) and "waited for data: rank 0 " in whole, whole

    command += ["--checkpoint", tmp_path / "digits.pt"]
    code, output = launch(2, [*command, "--steps", "60"])
    assert code == 0 and "epoch 1/3" in output, output
    code, rest = launch(2, command)
    assert code == 0 and re.search(r"goes on behind sample [1-9]\d* of epoch 2", rest), rest
    assert rest[rest.index("parameter sum") :] == whole[whole.index("parameter sum") :], (rest, whole)
    assert f"epoch 3/3 loss {losses[2]}" in rest


def test_waiting_is_marked_in_the_timeline(tmp_path):
    outcome = run_ranks(1, waits_for_data, env={"RUEDA_TIMELINE": str(tmp_path / "t.json")})
    assert results(outcome) == [4]
    names = [event.get("name") for event in timelines.load(tmp_path / "t.json")]
    assert names.count("wait for data") == 4


def waits_for_data():
    return len(given(DataLoader(numbers(8), 2)))
