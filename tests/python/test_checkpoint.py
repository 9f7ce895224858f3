"""checkpoint: the same gradients from less memory, and collectives run once, whatever ranks do in backward."""

import copy
import io
import os

import numpy as np
import pytest
import rueda
import rueda.attention as attention
import rueda.torch as hvd
import torch
from worlds import ranks

WORLD = "torch"


class Block(torch.nn.Module):
    def __init__(self, width=32, dropout=0.5):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.BatchNorm1d(4 * width),
            torch.nn.Linear(4 * width, width),
        )

    def forward(self, x, scale=1.0):
        return x + scale * self.layers(x)


def model_of(blocks=4, **options):
    torch.manual_seed(3)
    return torch.nn.Sequential(*(Block(**options) for _ in range(blocks)))


def gradients(model, run=None, steps=2):
    """Of all parameters and of the input, with the buffers, after some steps."""
    torch.manual_seed(7)
    x = torch.randn(16, 32, requires_grad=True)
    for _ in range(steps):
        loss = (run or model)(x).square().mean()
        loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(2)]


def assert_equal(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others):
        assert torch.equal(one, other)


def checkpointed(model, **options):
    for child in model:
        assert hvd.checkpoint(child, **options) is child
    return model


# ---- of one process ----


@pytest.mark.parametrize("use_reentrant", (False, True))
def test_everything_is_as_without(use_reentrant):
    expected = gradients(model_of())
    assert_equal(gradients(checkpointed(model_of(), use_reentrant=use_reentrant)), expected)
    model = model_of()

    def run(x):
        for block in model:
            x = hvd.checkpoint(block, x, use_reentrant=use_reentrant)
        return x

    assert_equal(gradients(model, run), expected)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", None)

    def forward(self, x):
        self.count = self.count + 1
        self.last = torch.full((2,), float(self.count))
        return self.linear(x).sin()


@pytest.mark.parametrize("use_reentrant", (False, True))
def test_buffers_that_are_replaced_are_so_once(use_reentrant):
    model = torch.nn.Sequential(Counting(), Counting())
    hvd.checkpoint(model, use_reentrant=use_reentrant)
    for step in range(1, 4):
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        assert [(int(each.count), each.last.tolist()) for each in model] == [(step, [step, step])] * 2


def test_less_is_kept():
    kept = {}
    for form, model in (("plain", model_of(8)), ("checkpointed", checkpointed(model_of(8)))):
        with hvd.measure_activations(model) as activations:
            loss = model(torch.ones(64, 32, requires_grad=True)).sum()
            kept[form] = activations.now
            loss.backward()
            assert activations.now == 0
    inputs = 8 * 64 * 32 * 4
    assert inputs <= kept["checkpointed"] <= 1.1 * inputs
    assert kept["plain"] > 8 * kept["checkpointed"]


def test_checkpoints_within_checkpoints():
    expected = gradients(model_of())
    model = checkpointed(model_of())
    assert_equal(gradients(model, lambda x: hvd.checkpoint(model, x)), expected)


def test_keywords_names_copies_and_pickles_of_a_checkpointed_module():
    plain, model = Block(dropout=0.0), hvd.checkpoint(Block(dropout=0.0))
    model.load_state_dict(plain.state_dict())
    assert list(model.state_dict()) == list(plain.state_dict())
    x = torch.ones(4, 32, requires_grad=True)
    assert torch.equal(model(x, scale=3.0), plain(x, scale=3.0))
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for other in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
        assert isinstance(other, Block)
        with torch.no_grad():
            other.layers[4].weight.zero_()
            other.layers[4].bias.zero_()
        assert torch.equal(other(x), x)  # its own parameters
        with hvd.measure_activations(other) as activations:
            kept = other(x)
            assert activations.now == x.nbytes, kept.shape
    assert not torch.equal(model(x), x)


def test_second_derivatives():
    def function(x):
        return torch.sin(x) * torch.exp(x)

    x = torch.tensor([0.2, -1.0], dtype=torch.float64, requires_grad=True)

    def second(run):
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.equal(second(lambda x: hvd.checkpoint(function, x)), second(function))
    with pytest.raises(RuntimeError):
        second(lambda x: hvd.checkpoint(function, x, use_reentrant=True))


def test_autocast_is_as_before():
    seen = []

    def function(x):
        y = x @ x
        seen.append((y.dtype, torch.is_autocast_enabled("cpu")))
        return y.float().sin().sum()

    x = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = hvd.checkpoint(function, x)
    loss.backward()
    assert seen == [(torch.bfloat16, True)] * 2


def test_an_error_in_either_pass_is_the_functions_own():
    calls = []

    def function(x, at):
        calls.append(at)
        if len(calls) == at:
            raise KeyError("mine")
        return x.sin().sin()

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(KeyError, match="mine"):
        hvd.checkpoint(function, x, 1)
    loss = hvd.checkpoint(function, x, 3).sum()
    with pytest.raises(KeyError, match="mine"):
        loss.backward()
    hvd.checkpoint(function, x, 0).sum().backward()
    assert torch.equal(x.grad, (x.sin().cos() * x.cos()).detach())


def test_without_gradients_it_is_the_function():
    calls = []
    with torch.no_grad():
        assert hvd.checkpoint(lambda x: calls.append(x) or x, 5) == 5
    assert calls == [5]


def test_what_is_kept_goes_to_a_file(tmp_path):
    inputs = [torch.randn(300, 200, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    weight = torch.randn(200, 200)
    for values in inputs:
        found = []
        for offload in (None, str(tmp_path)):
            x = values.clone().requires_grad_()
            w = weight.to(values.dtype).clone().requires_grad_()
            with hvd.measure_activations() as activations:
                y = x
                for _ in range(3):
                    y = hvd.checkpoint(lambda y: (y.sin() @ w).cos().T.T, y * 1.0, offload=offload)
                now = activations.now
                y.sum().backward(retain_graph=True)
                y.sum().backward()
            found.append((x.grad, w.grad))
            assert (now >= 3 * values.nbytes) == (offload is None)
        assert_equal(*found)
    assert os.listdir(tmp_path) == []  # it has no name


def test_the_file_is_used_again(tmp_path):
    from rueda.torch import _offload

    file = _offload._File.of(str(tmp_path))
    for _ in range(3):
        x = torch.ones(200, 200, requires_grad=True)
        hvd.checkpoint(torch.sin, x * 1.0, offload=str(tmp_path)).sum().backward()
        assert file._end == 0
        dropped = hvd.checkpoint(torch.sin, x * 1.0, offload=str(tmp_path))
        assert file._end == x.nbytes
        del dropped
        assert file._end == 0
    assert os.fstat(file._file.fileno()).st_size == x.nbytes


def test_offload_to_the_host_leaves_what_is_there():
    expected = gradients(model_of())
    assert_equal(gradients(checkpointed(model_of(), offload="cpu")), expected)


@pytest.mark.parametrize("offload", ("gpu", "/no/such/folder", 5, True))
def test_offload_to_nowhere_is_refused_at_once(offload):
    with pytest.raises(ValueError, match="there are 'cpu', a folder that exists"):
        hvd.checkpoint(Block(), offload=offload)


def test_bad_use_is_told():
    with pytest.raises(TypeError, match="give the arguments"):
        hvd.checkpoint(torch.sin)
    with pytest.raises(ValueError, match="checkpointed already"):
        hvd.checkpoint(hvd.checkpoint(Block()))


# ---- with collectives inside ----


@ranks(2, 3)
def test_synchronized_batch_normalization_inside():
    def model_here():
        model = hvd.convert_sync_batchnorm(model_of(dropout=0.0))
        torch.manual_seed(hvd.rank())
        return model

    def run(model):
        torch.manual_seed(hvd.rank())
        x = torch.randn(5 + hvd.rank(), 32, requires_grad=True)
        for _ in range(2):
            model(x).square().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]

    expected = run(model_here())
    assert_equal(run(checkpointed(model_here())), expected)
    assert_equal(run(checkpointed(model_here(), use_reentrant=True)), expected)
    model = checkpointed(model_here())  # within another, as a function that is no module
    whole = [lambda x: model(x)]

    class Whole(torch.nn.Module):
        def forward(self, x):
            return hvd.checkpoint(whole[0], x)

        def parameters(self):
            return model.parameters()

        def buffers(self):
            return model.buffers()

    assert_equal(run(Whole()), expected)


def every_collective(x, calls):
    """Uses all kinds, some of them twice, in place, asynchronous, grouped, of arrays."""
    calls.append(hvd.rank())
    detached = x.detach()
    parts = [hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(detached, name="named"), hvd.allreduce(detached)]
    parts += hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)
    parts += hvd.grouped_allreduce_([detached.clone(), detached * 2])
    parts.append(hvd.broadcast(x, 0))
    parts.append(hvd.broadcast_(detached.clone(), hvd.size() - 1, name="last"))
    parts.append(hvd.allgather(x).sum() + x)
    parts += [y.sum() + x for y in hvd.grouped_allgather([detached, x])]
    rows = x.expand(hvd.size(), -1)
    parts.append(hvd.reducescatter(rows, op=hvd.Sum)[0])
    parts += [y[0] for y in hvd.grouped_reducescatter([rows.detach(), rows])]
    received, splits = hvd.alltoall(rows, torch.ones(hvd.size(), dtype=torch.int32))
    parts.append(received.sum(0) * splits.sum())
    out = torch.empty_like(detached)
    hvd.allreduce(detached, out=out)
    first, second = hvd.allreduce_async(detached * 3), hvd.allreduce_async_(detached.clone())
    assert hvd.wait_any([second, first]) in (first, second)
    parts += [out, hvd.synchronize(second).add_(1.0), hvd.synchronize(first)]
    hvd.barrier()
    right, left = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    sent = hvd.send_async(detached, right)
    parts.append(hvd.recv(torch.empty_like(detached), left))
    hvd.synchronize(sent)
    parts.append(torch.from_numpy(rueda.allreduce(detached.numpy())))
    kept = np.full(2, hvd.rank(), np.float32)
    rueda.broadcast_(kept, 1)
    parts.append(x * float(kept.sum()) + hvd.broadcast_object(hvd.rank(), 1))
    parts.append(hvd.allreduce(x, compression=hvd.Compression.fp16))
    return sum(parts)


def messages():
    """How many collectives this rank has been in."""
    hvd.barrier()
    counters = rueda.counters()
    return counters["tensors"]


@ranks(2, 3)
def test_no_collective_runs_again():
    x = torch.arange(1.0, 5.0) + hvd.rank()
    plain, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    counts = []
    for tensor, run in ((plain, lambda f, *a: f(*a)), (mine, hvd.checkpoint)):
        calls = []
        before = messages()
        loss = run(every_collective, tensor, calls).sin().sum()
        middle = messages()
        loss.backward(retain_graph=True)
        loss.backward()
        counts.append((len(calls), middle - before, messages() - middle))
    assert_equal([mine.grad], [plain.grad])
    (once, *without), (_, *with_) = counts
    assert once == 1 and counts[1][0] == 3
    assert with_ == without


@ranks(2, 3)
def test_the_order_in_which_ranks_recompute_does_not_matter():
    def centred(x, name):
        with torch.no_grad():
            mean = hvd.allreduce(x.mean(), name=name)
        return ((x - mean) * x).sin()

    inputs = [(torch.arange(1.0, 4.0) * (i + 1) + hvd.rank()).requires_grad_() for i in range(4)]
    losses = [hvd.checkpoint(centred, x, f"mean.{i}").sum() for i, x in enumerate(inputs)]
    order = list(range(4))
    if hvd.rank() == 1:
        order.reverse()
    elif hvd.rank() == 2:
        order = order[:1]  # and three of them never
    for i in order:
        losses[i].backward()
    for i, x in enumerate(inputs):
        y = x.detach().requires_grad_()
        centred(y, None).sum().backward()
        assert i not in order or torch.equal(x.grad, y.grad)


@ranks(2)
def test_a_function_that_does_something_else_the_second_time_is_told():
    calls = []

    def function(x, change):
        calls.append(1)
        if len(calls) % 2 == 0 and change == "more":
            for _ in range(3):
                x = x + hvd.allreduce(x.detach())
        if len(calls) % 2 == 0 and change == "other":
            return (x * hvd.allgather(x.detach())[: len(x)]).sin()
        return (x * hvd.allreduce(x.detach())).sin() * hvd.allreduce(x.detach()).sin()

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="called allgather when it was recomputed, and before allreduce"):
        hvd.checkpoint(function, x, "other").sum().backward()
    with pytest.raises(RuntimeError, match="called allreduce when it was recomputed, and before no more"):
        hvd.checkpoint(function, x, "more", determinism_check="none").sum().backward()
    hvd.barrier()


@ranks(2, 3)
def test_attention_over_ranks_inside():
    torch.manual_seed(hvd.rank())
    mine = [torch.randn(1, 6, 2, 8, requires_grad=True) for _ in range(3)]
    plain = [x.detach().requires_grad_() for x in mine]

    def block(q, k, v):
        out = attention.ring_attention(q.sin(), k, v, causal=True)
        return attention.ulysses_attention(out.cos(), k, v).square()

    before = rueda.counters()
    block(*plain).sum().backward()
    without = rueda.counters()
    hvd.checkpoint(block, *mine).sum().backward()
    with_ = rueda.counters()
    assert_equal([x.grad for x in mine], [x.grad for x in plain])
    for name in ("tensors", "shm_bytes"):
        assert with_[name] - without[name] <= without[name] - before[name]


@ranks(2)
def test_compression_with_a_memory_remembers_once():
    def run(checkpoint):
        compression = hvd.Compression.topk(0.25)
        x = (torch.arange(4096.0) * (1 + hvd.rank())).requires_grad_()
        for _ in range(3):
            y = checkpoint(lambda x: hvd.allreduce(x, name="compressed", compression=compression).sin(), x)
            y.sum().backward()
        return [x.grad, y.detach()]

    assert_equal(run(hvd.checkpoint), run(lambda function, x: function(x)))


@ranks(2)
def test_training_is_as_without():
    def train(prepare, **options):
        model = prepare(hvd.convert_sync_batchnorm(model_of()))
        if options.get("shard") == "parameters":
            options = {**options, "module": model, "units": [Block]}
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), 0.01), named_parameters=model.named_parameters(), **options
        )
        torch.manual_seed(hvd.rank())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).square().sum().backward()
            optimizer.step()
        return list(model.state_dict().values())

    for options in ({}, {"shard": "gradients"}, {"shard": "parameters"}):
        assert_equal(train(checkpointed, **options), train(lambda model: model, **options))
