"""op=Adasum in every form of allreduce, and in DistributedOptimizer."""

import numpy as np
import rueda
import rueda.torch as hvd
import torch
from expect import raises, same
from worlds import ranks

WORLD = "torch"

DTYPES = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-13}


def adasum(vectors):
    """The textbook form in doubles: (vector, number of ranks behind it), neighbours first."""
    level = [(np.asarray(vector, np.float64), 1) for vector in vectors]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [pair[0] if len(pair) == 1 else combine(*pair) for pair in pairs]
    return level[0][0]


def combine(left, right):
    (a, n), (b, m) = left, right
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    weight_a = 1 - n / (n + m) * dot / aa if aa else 1
    weight_b = 1 - m / (n + m) * dot / bb if bb else 1
    return weight_a * a + weight_b * b, n + m


def values(rank, number=0, count=3000, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * number + rank)
    return (torch.randn(count, generator=generator) + 0.4).to(dtype)


def expected(number=0, count=3000, dtype=torch.float32):
    return adasum([values(r, number, count, dtype).double() for r in range(hvd.size())])


def close(result, wanted, dtype):
    largest = np.abs(wanted).max()
    error = np.abs(result.double().numpy() - wanted).max()
    assert error <= DTYPES[dtype] * largest, f"{dtype}: off by {error} of {largest}"


def on_all_ranks_the_same(tensor):
    everybody = hvd.allgather(tensor.reshape(1, -1))
    assert all(torch.equal(row, everybody[0]) for row in everybody)


@ranks(1, 2, 3)
def test_every_form_gives_the_reference():
    for dtype in DTYPES:
        mine, wanted = values(hvd.rank(), dtype=dtype), expected(dtype=dtype)
        result = hvd.allreduce(mine, op=hvd.Adasum)
        close(result, wanted, dtype)
        assert torch.equal(mine, values(hvd.rank(), dtype=dtype))
        on_all_ranks_the_same(result)
        again = hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Adasum))
        assert torch.equal(again, result)
        hvd.allreduce_(mine, op=hvd.Adasum)
        assert torch.equal(mine, result)
    many = [values(hvd.rank(), number, count) for number, count in enumerate((5, 3000, 1))]
    for number, result in enumerate(hvd.grouped_allreduce(many, op=hvd.Adasum)):
        close(result, expected(number, len(result)), torch.float32)
        assert torch.equal(result, hvd.allreduce(many[number], op=hvd.Adasum))
    same(
        rueda.allreduce(values(hvd.rank()).numpy(), op=rueda.Adasum),
        hvd.allreduce(values(hvd.rank()), op=hvd.Adasum).numpy(),
    )


@ranks(2, 3)
def test_scales_multiply_the_result_and_fp16_travels():
    mine = values(hvd.rank())
    plain = hvd.allreduce(mine, op=hvd.Adasum)
    scaled = hvd.allreduce(mine, op=hvd.Adasum, prescale_factor=4.0, postscale_factor=0.125)
    assert torch.equal(scaled, plain * 0.5)
    small = hvd.allreduce(mine, op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert small.dtype == torch.float32
    close(small, expected(), torch.float16)


@ranks(2)
def test_it_comes_again_beside_a_plan():
    wanted = hvd.allreduce(values(hvd.rank()), op=hvd.Adasum)
    for step in range(12):
        handles = [hvd.allreduce_async(values(hvd.rank()), op=hvd.Adasum, name="adasum")]
        ones = torch.full((50,), float(hvd.rank() + step))
        handles.append(hvd.allreduce_async(ones, op=hvd.Sum, name="sum"))
        assert torch.equal(hvd.synchronize(handles[0]), wanted)
        assert torch.equal(hvd.synchronize(handles[1]), torch.full((50,), 2.0 * step + 1))


@ranks(2)
def test_disagreement_and_other_dtypes_are_errors():
    op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
    with raises(hvd.HorovodInternalError, "Mismatched reduction operation", "adasum", "sum"):
        hvd.allreduce(values(0), op=op, name="mixed")
    for dtype in (torch.int32, torch.uint8, torch.bool):
        with raises(ValueError, "Adasum of " + str(dtype).replace("torch.", "")):
            hvd.allreduce(torch.ones(3, dtype=dtype), op=hvd.Adasum)
    with raises(ValueError, "only supports AVERAGE and SUM"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def backward(model, rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    model(torch.randn(6, 5, generator=generator)).square().mean().backward()


def make_optimizer(model):
    # Two groups with different options: each parameter is stepped with its own group's.
    first, second = [list(model[i].parameters()) for i in (0, 2)]
    groups = [{"params": first}, {"params": second, "lr": 0.02}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)


def simulate(steps, passes=1):
    """All ranks' steps by plain PyTorch and the reference."""
    models = [make_model() for _ in range(hvd.size())]
    optimizers = [make_optimizer(model) for model in models]
    for step in range(steps):
        before = [p.detach().clone() for p in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            for number in range(passes):
                backward(model, rank, passes * step + number)
            optimizer.step()
        for start, *after in zip(before, *(model.parameters() for model in models)):
            deltas = [(p.detach() - start).double().reshape(-1) for p in after]
            combined = torch.from_numpy(adasum(deltas)).reshape(start.shape).float()
            for p in after:
                p.data.copy_(start + combined)
    return models[0]


@ranks(1, 2, 3)
def test_the_optimizer_adds_the_adasum_of_all_steps():
    for options in ({}, {"groups": 2}, {"backward_passes_per_step": 2}):
        passes = options.get("backward_passes_per_step", 1)
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model), model.named_parameters(), op=hvd.Adasum, **options
        )
        assert isinstance(optimizer, torch.optim.SGD)
        for step in range(3):
            optimizer.zero_grad()
            for number in range(passes):
                backward(model, hvd.rank(), passes * step + number)
            optimizer.step()
        for p, wanted in zip(model.parameters(), simulate(3, passes).parameters()):
            torch.testing.assert_close(p, wanted, rtol=1e-5, atol=1e-6)
            on_all_ranks_the_same(p.detach())


@ranks(2)
def test_the_optimizer_in_unusual_calls():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(model), model.named_parameters(), op=hvd.Adasum
    )
    before = [p.detach().clone() for p in model.parameters()]
    backward(model, hvd.rank(), 0)
    with raises(AssertionError, "zero_grad() was called after loss.backward()"):
        optimizer.zero_grad()
    optimizer.synchronize()  # does nothing
    with raises(NotImplementedError, "cannot be clipped or unscaled"):
        optimizer.clip_grad_norm_(1.0)
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):  # PyTorch 2.3
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(1))
        with raises(NotImplementedError, "cannot be clipped or unscaled"):
            scaler.step(optimizer)
    with raises(AssertionError, "not supported when using Adasum"):
        with optimizer.skip_synchronize():
            pass
    assert all(torch.equal(p, start) for p, start in zip(model.parameters(), before))
    optimizer.step()
    assert not any(torch.equal(p, start) for p, start in zip(model.parameters(), before))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 5)).sum()
        loss.backward()
        return loss

    optimizer.check_replicas(every=1)  # of parameters; momentum differs
    assert optimizer.step(closure) is not None
    # Parameters without gradient stay where they are; what moves on rank 1 alone moves everywhere.
    optimizer.zero_grad()
    before = [p.detach().clone() for p in model.parameters()]
    if hvd.rank() == 1:
        model[2](torch.ones(1, 8)).sum().backward()
    optimizer.step()
    moved = [not torch.equal(p, start) for p, start in zip(model.parameters(), before)]
    assert moved == [False, False, True, True]
    for p in model.parameters():
        on_all_ranks_the_same(p.detach())
    with torch.no_grad():
        model[0].bias += hvd.rank()
    with raises(hvd.ReplicasDiffer, "'0.bias' on rank 1"):
        optimizer.step()
    with raises(ValueError, "gradients_in_arena"):
        hvd.DistributedOptimizer(
            make_optimizer(model), op=hvd.Adasum, gradients_in_arena=True
        )
    with raises(ValueError, "gradient_predivide_factor"):
        hvd.DistributedOptimizer(
            make_optimizer(model), op=hvd.Adasum, gradient_predivide_factor=2.0
        )
