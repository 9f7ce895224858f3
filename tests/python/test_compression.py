"""int8, top-k and PowerSGD: what they compute, remember and refuse; the digits job with each."""

import pathlib
import sys
import types
import weakref

import pytest
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _async
from rueda.torch._compress_chain import Chain
from rueda.torch._compress_int8 import from_int8, to_int8
from worlds import ranks, results, run_ranks

WORLD = "torch"

C = hvd.Compression
EVERY = {
    "int8": lambda: C.int8(),
    "topk": lambda: C.topk(0.1),
    "powersgd": lambda: C.powersgd(2),
}
SHAPE = (48, 50)


def gradient(rank, step=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator) + 0.2


def mean(step=0, shape=SHAPE):
    return sum(gradient(rank, step, shape) for rank in range(hvd.size())) / hvd.size()


def on_all_ranks_the_same(tensor):
    everybody = hvd.allgather(tensor.reshape(1, -1).double())
    bits = everybody.view(torch.int64)  # in which a NaN equals itself
    assert all(torch.equal(row, bits[0]) for row in bits)


def test_int8_blocks():
    blocks = torch.randn(40, 256) * torch.logspace(-38, 37, 40)[:, None]
    blocks[3] = 0
    back = from_int8(to_int8(blocks))
    assert to_int8(blocks).shape == (40, 260) and to_int8(blocks).dtype == torch.int8
    step = blocks.abs().amax(dim=1, keepdim=True) / 127
    assert torch.all((back - blocks).abs() <= 0.5001 * step)
    assert from_int8(to_int8(blocks[:0])).shape == (0, 256)
    whole = torch.arange(-128, 128, dtype=torch.float32).clamp(-127)[None]
    assert torch.equal(from_int8(to_int8(whole)), whole)
    for bad in (float("nan"), float("inf"), -float("inf")):
        spoilt = blocks.clone()
        spoilt[5, 7] = bad
        back = from_int8(to_int8(spoilt))
        assert back[5].isnan().all() and back[torch.arange(40) != 5].isfinite().all()


@ranks(1, 2, 3)
def test_what_is_left_out_comes_later():
    """All results and what the ranks remember add up to all gradients."""
    for kind, make in EVERY.items():
        compression, total = make(), torch.zeros(SHAPE)
        for step in range(10):
            result = hvd.allreduce(gradient(hvd.rank(), step), name="x", compression=compression)
            total += result
            on_all_ranks_the_same(result)
        wanted = sum(mean(step) for step in range(10))
        if hvd.size() == 1:
            torch.testing.assert_close(total, wanted)
            continue
        memory = compression.state_dict()["memory"]["x"]
        left_out = hvd.allreduce(memory["error"], name="error")
        if kind == "int8":
            of_sums = hvd.allgather(memory["error of the sum"].reshape(-1)) / hvd.size()
            left_out += of_sums[: left_out.numel()].reshape(SHAPE)
            assert left_out.abs().max() < 0.05
        assert left_out.any() and not torch.allclose(total, wanted)
        torch.testing.assert_close(total + left_out, wanted, rtol=1e-4, atol=1e-4)


@ranks(2, 3)
def test_scales_dtypes_and_what_is_not_compressed():
    mine = gradient(hvd.rank())
    for kind, make in EVERY.items():
        average = hvd.allreduce(mine, name="x", compression=make())
        total = hvd.allreduce(mine, name="x", compression=make(), op=hvd.Sum)
        torch.testing.assert_close(total, average * hvd.size())
        scales = {"prescale_factor": 0.5, "postscale_factor": 8.0}
        scaled = hvd.allreduce(mine, name="x", compression=make(), **scales)
        assert torch.equal(scaled, average * 4)
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            result = hvd.allreduce(mine.to(dtype), name="x", compression=make())
            assert result.dtype == dtype and result.shape == mine.shape
            on_all_ranks_the_same(result)
        # Few elements, and no floats: exact.
        for tensor in (mine[:5].clone(), torch.arange(5000) + hvd.rank(), torch.tensor(3.0)):
            exact = hvd.allreduce(tensor, name="plain")
            assert torch.equal(hvd.allreduce(tensor, name="y", compression=make()), exact)
    # Columns of a matrix, and a vector, for which PowerSGD does nothing.
    column = gradient(hvd.rank(), shape=(3000,))
    assert torch.equal(
        hvd.allreduce(column, name="v", compression=C.powersgd(1)), hvd.allreduce(column, name="w")
    )
    # A matrix of rank 1 that all ranks have is found in one step.
    same = torch.outer(torch.linspace(1, 2, 40), torch.linspace(-1, 3, 60))
    found = hvd.allreduce(same, name="outer", compression=C.powersgd(1))
    torch.testing.assert_close(found, same, rtol=1e-5, atol=1e-5)
    # The class itself: an instance of the call's own, without memory.
    first, again = (hvd.allreduce(mine, name="z", compression=C.int8) for _ in range(2))
    assert torch.equal(first, again)


@ranks(2)
def test_zeros_and_overflows_are_forgotten():
    for kind, make in EVERY.items():
        compression = make()

        def reduce(tensor, compression=compression):
            return hvd.allreduce(tensor, name="x", compression=compression)

        assert not reduce(torch.zeros(SHAPE)).any()
        assert reduce(gradient(hvd.rank())).any()
        for bad in (float("nan"), float("inf")):
            spoilt = gradient(hvd.rank(), 1)
            if hvd.rank() == 1:
                spoilt[3, 4] = bad
            result = reduce(spoilt)
            on_all_ranks_the_same(result)
            assert not result[3, 4].isfinite()
            for step in range(3):
                result = reduce(gradient(hvd.rank(), 2 + step))
            assert result.isfinite().all()
            compared = (result * mean(4)).sum() / (result.norm() * mean(4).norm())
            assert compared > 0.2, f"{kind}: {compared}"


@ranks(3)
def test_a_saved_memory_goes_on_with_the_same_bits():
    for kind, make in EVERY.items():
        first, second = make(), make()
        for step in range(3):
            hvd.allreduce(gradient(hvd.rank(), step), name="x", compression=first)
        state = first.state_dict()
        wanted = [
            hvd.allreduce(gradient(hvd.rank(), step), name="x", compression=first)
            for step in range(3, 6)
        ]
        second.load_state_dict(state)
        for step in range(3, 6):
            result = hvd.allreduce(gradient(hvd.rank(), step), name="x", compression=second)
            assert torch.equal(result, wanted[step - 3])
        other = C.topk(0.2) if kind != "int8" else C.powersgd(2)
        with raises(ValueError, "this is the state of compression"):
            other.load_state_dict(state)


@ranks(2)
def test_directions_that_only_some_ranks_remember_are_dropped():
    wanted = hvd.allreduce(gradient(hvd.rank()), name="x", compression=C.powersgd(2))
    compression = C.powersgd(2)
    if hvd.rank() == 0:
        remembered = {"x": {"q": gradient(5, shape=(50, 2))}}
        compression.load_state_dict({**compression.state_dict(), "memory": remembered})
    result = hvd.allreduce(gradient(hvd.rank()), name="x", compression=compression)
    assert torch.equal(result, wanted)


@ranks(2)
def test_chains_in_different_orders_groups_and_gradients():
    tensors = {name: gradient(hvd.rank(), step) for step, name in enumerate("abcde")}
    for make in EVERY.values():
        alone = {n: hvd.allreduce(t, name=n, compression=make()) for n, t in tensors.items()}
        compression = make()
        order = sorted(tensors, reverse=hvd.rank() == 1)
        chains = {n: compression.start(tensors[n], n) for n in order}
        for name in reversed(order):
            assert torch.equal(chains[name].wait(), alone[name])
        if hvd.rank() == 1:
            hvd.barrier()  # rank 0's is under way until rank 1 has started its own
        chain = compression.start(tensors["a"], "a")
        if hvd.rank() == 0:
            with raises(ValueError, "same name as another tensor"):
                compression.start(tensors["a"], "a")
            hvd.barrier()
        chain.wait()
        grouped = hvd.grouped_allreduce(list(tensors.values()), name="g", compression=make())
        assert [t.shape for t in grouped] == [t.shape for t in tensors.values()]
        x = gradient(hvd.rank()).requires_grad_()
        hvd.allreduce(x, name="x", compression=make()).sum().backward()
        assert torch.equal(x.grad, torch.ones(SHAPE))


@ranks(2)
def test_ranks_that_wait_for_different_chains_first_do_not_wait_for_ever():
    looks = 0

    def poll(handle):  # as if nothing had ended yet when it is looked at first
        nonlocal looks
        looks += 1
        return looks > 20 and really(handle)

    really, _async.poll = _async.poll, poll
    try:
        order = "abcde" if hvd.rank() == 0 else "edcba"
        compression = C.int8()
        chains = {n: compression.start(gradient(hvd.rank()), n) for n in order}
        for name in reversed(order):
            assert chains[name].wait().isfinite().all()
    finally:
        _async.poll = really


def test_a_collective_that_ends_because_ranks_did_not_come_ends_its_chain(monkeypatch):
    """Its error is that of a wait that was too short, but there is nothing to wait for."""
    calls = []

    def synchronize(handle, seconds=None):
        calls.append(handle)
        assert len(calls) < 100, "it waits for ever"
        if handle != "first":
            what = "not yet" if handle == "second" and seconds is not None else "ended"
            raise hvd.DeadlineExceeded(what)

    def poll(handle):
        return handle != "second" or seconds_passed()

    def seconds_passed():
        return calls[-1:] == ["second"] and len(calls) > 2

    monkeypatch.setattr(_async, "synchronize", synchronize)
    monkeypatch.setattr(_async, "poll", poll)
    company = weakref.WeakValueDictionary()
    chain = Chain(iter_of("first", "second"), company, "a")
    other = Chain(iter_of("other"), company, "b")
    with pytest.raises(hvd.DeadlineExceeded, match="ended"):
        chain.wait()
    with pytest.raises(hvd.DeadlineExceeded, match="ended"):
        other.wait()


def iter_of(*handles):
    for handle in handles:
        yield handle


@ranks(2)
def test_ranks_that_disagree_learn_it():
    for kind, make in EVERY.items():
        # Few elements are not compressed; 2400 and 2410 are as many blocks of 256.
        for rows, columns in ((10, 10), (40, 60), (24, 100), (241, 10)):
            compression = make()
            shape = SHAPE if hvd.rank() == 0 else (rows, columns)
            name = f"{kind}.{rows}"
            wrong = compression.start(gradient(hvd.rank(), shape=shape), name)
            right = compression.start(gradient(hvd.rank()), "right")
            with raises(hvd.HorovodInternalError, "Mismatched", f"allreduce '{name}'"):
                wrong.wait()
            assert right.wait().isfinite().all()
    with raises(hvd.HorovodInternalError, "compressions: allreduce 'ratio'"):
        hvd.allreduce(gradient(0), name="ratio", compression=C.topk(0.1 + 0.1 * hvd.rank()))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 3))


def wrap(model, compression, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression, **options)


class Halving:
    """A compressor as users wrote them for Horovod."""

    @classmethod
    def compress(cls, tensor):
        return tensor.half(), tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor.to(ctx)


@ranks(2)
def test_the_optimizer_reduces_as_allreduce_does():
    def backward(model, step):
        x = gradient(hvd.rank(), step, (7, 40))
        model(x).square().mean().backward()

    twice = {"backward_passes_per_step": 2, "gradient_predivide_factor": 2.0}
    for make in [*EVERY.values(), lambda: Halving]:
        for options in ({}, twice) if make is EVERY["int8"] else ({},):
            model, plain = make_model(), make_model()
            compression = make()
            optimizer = wrap(model, make(), **options)
            for step in range(2):
                for number in range(options.get("backward_passes_per_step", 1)):
                    backward(model, 2 * step + number)
                    backward(plain, 2 * step + number)
                optimizer.synchronize()
                for (name, p), q in zip(model.named_parameters(), plain.parameters()):
                    wanted = hvd.allreduce(q.grad, name="own." + name, compression=compression)
                    # PowerSGD begins with directions that depend on the name.
                    if name != "0.weight" or make is not EVERY["powersgd"]:
                        torch.testing.assert_close(p.grad, wanted)
                    on_all_ranks_the_same(p.grad)
                with optimizer.skip_synchronize():
                    optimizer.step()
                optimizer.zero_grad()
                plain.zero_grad()
                plain.load_state_dict(model.state_dict())


@ranks(2)
def test_sparse_gradients_and_gradients_that_do_not_come():
    torch.manual_seed(1)
    model = torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(100, 30, sparse=True), "unused": torch.nn.Linear(50, 50)}
    )
    optimizer = wrap(model, C.int8, sparse_as_dense=True)
    model["words"](torch.tensor([hvd.rank(), 7])).sum().backward()
    optimizer.synchronize()
    dense = model["words"].weight.grad.to_dense()
    torch.testing.assert_close(dense[7], torch.ones(30), rtol=0.01, atol=0.01)
    torch.testing.assert_close(dense[0], torch.full((30,), 0.5), rtol=0.01, atol=0.01)
    assert not model["unused"].weight.grad.any()


@ranks(2)
def test_wrong_use_is_refused_at_once():
    mine = gradient(hvd.rank())
    for make in EVERY.values():
        for op in (hvd.Max, hvd.Adasum):
            with raises(ValueError, "op=Average and op=Sum"):
                hvd.allreduce(mine, op=op, name="x", compression=make())
            with raises(ValueError, "op=Average and op=Sum"):
                wrap(make_model(), make(), op=op)
        with raises(ValueError, "needs the name"):
            hvd.allreduce(mine, compression=make())
        with raises(ValueError, "reduces by itself"):
            hvd.reducescatter(mine, compression=make())
        with raises(ValueError, "groups"):
            wrap(make_model(), make(), groups=2)
        compression = make()
        hvd.allreduce(mine, name="x", compression=compression)
        with raises(ValueError, "a name belongs to one tensor"):
            hvd.allreduce(gradient(0, shape=(60, 50)), name="x", compression=compression)
        wrap(make_model(), compression)
        with raises(ValueError, "belongs to another optimizer"):
            wrap(make_model(), compression)
    for ratio in (0, -1, 1.5, float("nan")):
        with raises(ValueError, "ratio"):
            C.topk(ratio)
    for rank in (0, 1.5, True):
        with raises(ValueError, "rank"):
            C.powersgd(rank)


# The digits job.

TRAINED = {
    "none": lambda: {},
    "fp16": lambda: {"compression": C.fp16},
    "bf16": lambda: {"compression": C.bf16},
    "int8": lambda: {"compression": C.int8},
    "topk": lambda: {"compression": C.topk(0.05)},
    "powersgd": lambda: {"compression": C.powersgd(2)},
    "adasum": lambda: {"op": hvd.Adasum},
}


def train(options):
    """The digits job on this rank: accuracy, hash of the parameters, bytes sent by this rank."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
    import train_digits as job

    torch.set_num_threads(1)
    torch.manual_seed(1)
    args = types.SimpleNamespace(batch_size=24, lr=0.012, same_batches=False, epochs=16)
    train_images, train_labels, test_images, test_labels = job.load_digits()
    job.show_progress = lambda *ignored: None
    model = job.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    for epoch in range(args.epochs):
        job.train_epoch(model, optimizer, train_images, train_labels, epoch, args)
    sent = hvd.counter("tcp_bytes")
    accuracy = job.test_accuracy(model, test_images, test_labels)
    return {"accuracy": accuracy, "hash": job.parameter_hash(model), "sent": sent}


def train_none():
    return train(TRAINED["none"]())


def train_fp16():
    return train(TRAINED["fp16"]())


def train_bf16():
    return train(TRAINED["bf16"]())


def train_int8():
    return train(TRAINED["int8"]())


def train_topk():
    return train(TRAINED["topk"]())


def train_powersgd():
    return train(TRAINED["powersgd"]())


def train_adasum():
    return train(TRAINED["adasum"]())


def digits(name):
    function = globals()["train_" + name]
    found = results(run_ranks(2, function, env={"RUEDA_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"}))
    assert found[0]["hash"] == found[1]["hash"], found
    return found[0]["accuracy"], max(rank["sent"] for rank in found)


@pytest.fixture(scope="module")
def uncompressed():
    return digits("none")


@pytest.mark.parametrize(
    "name, fewer",
    [
        ("int8", 3.6),
        # A job each; what they do to gradients is tested above, exactly.
        pytest.param("topk", 8.0, marks=pytest.mark.slow),
        pytest.param("powersgd", 15.0, marks=pytest.mark.slow),
        pytest.param("fp16", 1.99, marks=pytest.mark.slow),
        pytest.param("bf16", 1.99, marks=pytest.mark.slow),
        pytest.param("adasum", 0.99, marks=pytest.mark.slow),
    ],
)
def test_the_digits_job_learns_as_well_with_fewer_bytes(name, fewer, uncompressed):
    accuracy, sent = digits(name)
    print(
        f"{name}: accuracy {accuracy:.4f} (uncompressed {uncompressed[0]:.4f}), "
        f"bytes sent per rank {sent} of {uncompressed[1]}: {uncompressed[1] / sent:.2f} times fewer"
    )
    assert accuracy >= uncompressed[0] - 0.01
    assert uncompressed[1] / sent >= fewer
