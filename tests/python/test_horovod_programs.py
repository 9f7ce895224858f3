"""Programs in the style of Horovod's own checks, through ``import horovod.torch`` and ``ruedarun --horovod``.

What such programs insist on beside the values, which `test_torch_table` has: where a scale is rounded, that a
handle is not ready at once, gradients in every type, names used twice, ranks that have joined, sets beside each
other. Each check is a function that all ranks run; a world runs all of them.
"""

import itertools
import os
import warnings

import pytest
from expect import raises
from worlds import results, run_ranks

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
DIMENSIONS = (1, 2, 3)


def same(actual, expected, *what):
    import torch

    assert actual.dtype == expected.dtype, (*what, actual.dtype, expected.dtype)
    assert torch.equal(actual, expected), (*what, actual, expected)


def numbers(torch, dtype, dim, first=17, seed=7):
    """The same on every rank; small enough for a sum over five in any type."""
    made = torch.Generator().manual_seed(seed)
    shape = [first] + [5] * (dim - 1)
    return torch.randint(0, 20, shape, generator=made).to(getattr(torch, dtype))


def scaled(torch, tensor, factor):
    """By Horovod's rule: integers in float64 and cut, halves in float32, the others in their own type."""
    kind = str(tensor.dtype).replace("torch.", "")
    wide = torch.float64 if kind in INTEGERS else torch.float32 if kind in HALVES else tensor.dtype
    return (torch.tensor(factor, dtype=torch.float64).to(wide) * tensor.to(wide)).to(tensor.dtype)


def scales_are_rounded_where_horovod_rounds(hvd, torch):
    size, wait = hvd.size(), hvd.synchronize
    for dtype, dim, factor in itertools.product(INTEGERS + FLOATS, DIMENSIONS, (0.1915, 0.6221, 0.4377)):
        x, pre, post = numbers(torch, dtype, dim), {"prescale_factor": factor}, {"postscale_factor": factor}
        before, after = scaled(torch, x, factor) * size, scaled(torch, x * size, factor)
        for name in (None, f"{dtype}.{dim}.{factor}"):
            options = {"op": hvd.Sum, "name": name}
            same(hvd.allreduce(x, **options, **pre), before, dtype, factor)
            same(hvd.allreduce(x, **options, **post), after, dtype, factor)
            same(wait(hvd.allreduce_async_(x.clone(), **options, **pre)), before)
            same(hvd.grouped_allreduce([x, x], **options, **post)[1], after)
            rows = before.tensor_split(size)[hvd.rank()]
            same(hvd.reducescatter(x, **options, **pre), rows)
            same(hvd.grouped_reducescatter([x, x], **options, **pre)[1], rows)


def some_rank_finds_a_handle_that_is_not_ready(hvd, torch):
    handles, waited = [], False
    for dtype, dim in itertools.product(INTEGERS + FLOATS, DIMENSIONS):
        x = numbers(torch, dtype, dim)
        handles.append((hvd.allreduce_async(x, average=False), x))
        waited |= not hvd.poll(handles[-1][0])
    for handle, x in handles:
        same(hvd.synchronize(handle), x * hvd.size())
    assert hvd.allreduce(torch.tensor([int(waited)]), op=hvd.Max).item() == 1


def slices_of_one_tensor_are_reduced(hvd, torch):
    for dtype, dim in itertools.product(INTEGERS + FLOATS, DIMENSIONS):
        whole = numbers(torch, dtype, dim + 1, first=hvd.size()) % 3
        wide = whole.double()
        for op, want in (("Min", wide.amin(0)), ("Max", wide.amax(0)), ("Product", wide.prod(0))):
            same(hvd.allreduce(whole[hvd.rank(), ...], op=getattr(hvd, op)), want.to(whole.dtype), dtype, op)


def gradients_have_horovods_values_in_every_type(hvd, torch):
    rank, size = hvd.rank(), hvd.size()
    rows = [r % 3 + 1 for r in range(size)]
    for dtype, dim in itertools.product(FLOATS, DIMENSIONS):
        kind, rest = getattr(torch, dtype), [5] * (dim - 1)

        def gradient(function, first, of_result=None, kind=kind, rest=rest):
            x = torch.ones(first, *rest, dtype=kind, requires_grad=True)
            result = function(x)
            result.backward(torch.ones_like(result) if of_result is None else of_result)
            return x.grad

        def full(first, value, kind=kind, rest=rest):
            return torch.full((first, *rest), float(value), dtype=kind)

        everyones = torch.cat([full(count, r) for r, count in enumerate(rows)])
        even = torch.tensor([2] * size, dtype=torch.int32)
        for function, first, of_result, want in (
            (lambda x: hvd.allreduce(x, op=hvd.Sum), 17, None, size),
            (lambda x: hvd.allreduce(x, average=True), 17, None, 1),
            (lambda x: hvd.grouped_allreduce([x, x * 0], op=hvd.Sum)[0], 17, None, size),
            (lambda x: hvd.broadcast(x, 1), 17, None, rank == 1),
            (hvd.allgather, rows[rank], everyones, rank),
            (lambda x: hvd.grouped_allgather([x])[0], rows[rank], everyones, rank),
            (hvd.alltoall, 2 * size, None, 1),
            (lambda x: hvd.alltoall(x, even)[0], 2 * size, None, 1),  # noqa: B023
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), 4 * size, None, size),
            (hvd.reducescatter, 4 * size, None, 1),
            (lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum)[0], 4 * size, None, size),
        ):
            same(gradient(function, first, of_result), full(first, want), dtype, dim)


def a_name_in_flight_is_refused_on_its_rank_alone(hvd, torch):
    rows = torch.ones(2 * hvd.size())
    starts = {
        "allreduce": hvd.allreduce_async,
        "allgather": hvd.allgather_async,
        "alltoall": lambda x, name: hvd.alltoall_async(x, name=name),
        "broadcast": lambda x, name: hvd.broadcast_async(x, 0, name=name),
        "reducescatter": hvd.reducescatter_async,
    }
    for kind, start in starts.items():
        handle = start(rows, name="twice") if hvd.rank() == 0 else None
        if hvd.rank() == 0:
            with raises(ValueError, f"{kind} 'twice'"):
                start(rows, name="twice")
        hvd.barrier(), hvd.barrier()  # others go on, while that one waits
        hvd.synchronize(handle if handle is not None else start(rows, name="twice"))
    together = [start(rows, name="one name") for start in starts.values()]  # of several kinds
    for handle in together:
        hvd.synchronize(handle)


def a_rank_that_has_joined_adds_zeros(hvd, torch):
    rank, size = hvd.rank(), hvd.size()
    for dtype, dim, first, cached in itertools.product(INTEGERS + FLOATS, (1, 2), range(size), (False, True)):
        inputs = [numbers(torch, dtype, dim, seed=s) for s in (1, 2)]
        for name, x in zip("ab", inputs if cached else ()):
            hvd.allreduce(x, name=name)
        if rank == first:
            last = hvd.join()
        else:
            for name, x in zip("ab", inputs):  # names that had other types before
                want = x.double() * (size - 1) / size
                result = hvd.allreduce(x, name=name)
                if dtype in INTEGERS:
                    same(result, want.trunc().to(result.dtype), dtype)
                else:
                    torch.testing.assert_close(result.double(), want, rtol=0.01, atol=0.01)
            last = hvd.join()
        assert last != first
        same(hvd.allgather(torch.tensor([last])), torch.tensor([last] * size))


def what_a_joined_rank_is_missing_from(hvd, torch):
    """An error as Horovod's when strict, else done by those that are there."""
    rows, strict = torch.ones(2 * hvd.size()), os.environ["RUEDA_HOROVOD_STRICT"] == "1"
    calls = (
        lambda: hvd.allgather(rows),
        lambda: hvd.grouped_allgather([rows, rows]),
        lambda: hvd.broadcast(rows, 1),
        lambda: hvd.alltoall(rows),
        lambda: hvd.reducescatter(rows),
        lambda: hvd.grouped_reducescatter([rows]),
        lambda: hvd.allgather_object(1),
        lambda: hvd.broadcast_object(1, 1),
        lambda: hvd.allgather(rows, name="cached"),
        lambda: hvd.alltoall(rows, name="cached"),
    )
    for call in calls:
        for _ in range(3):  # it has come before
            call()
        if hvd.rank() != 0:
            if strict:
                with raises(hvd.HorovodInternalError, "is not supported with Join", "has joined"):
                    call()
            else:
                call()
        assert hvd.join() in range(hvd.size())


def sets_work_beside_each_other(hvd, torch):
    rank, size = hvd.rank(), hvd.size()
    first, others = hvd.add_process_set([0]), hvd.add_process_set(hvd.ProcessSet(range(1, size)))
    mine, other = (first, others) if rank == 0 else (others, first)
    count, place, root = mine.size(), mine.rank(), mine.ranks[-1]
    for dtype, dim in itertools.product(INTEGERS + FLOATS, DIMENSIONS):
        x, own = numbers(torch, dtype, dim), {"process_set": mine}
        same(hvd.allreduce(x, op=hvd.Sum, **own), x * count)
        same(hvd.grouped_allreduce([x, x], op=hvd.Max, **own)[1], x)
        same(hvd.allgather(x, **own), torch.cat([x] * count))
        same(hvd.broadcast(x, root, **own), x)
        same(hvd.alltoall(x[: 2 * count], **own), torch.cat([x[2 * place :][:2]] * count))
        same(hvd.reducescatter(x, op=hvd.Sum, **own), (x * count).tensor_split(count)[place])
    hvd.barrier(process_set=mine)
    with raises(ValueError, "is not a member of the provided process set"):
        hvd.allreduce(x, process_set=other)
    assert hvd.remove_process_set(others) and not hvd.remove_process_set(hvd.global_process_set)
    hvd.barrier()  # between shutdown and init, as after each of Horovod's checks; a set is left behind
    hvd.shutdown()
    hvd.init()
    hvd.remove_process_set(hvd.add_process_set([0]))


def every_option_of_the_optimizer_averages(hvd, torch):
    def model():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))

    def loss_of(model, rank):
        return model(torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))).square().mean()

    alone = model()
    (sum(loss_of(alone, r) for r in range(hvd.size())) / hvd.size()).backward()
    for options, factor in (
        ({}, 1),
        ({"named_parameters": lambda m: m.named_parameters()}, 1),
        ({"gradient_predivide_factor": 2.0}, 1),
        ({"gradient_predivide_factor": 4.0, "groups": 2}, 1),
        ({"groups": lambda m: [list(m[0].parameters())]}, 1),
        ({"num_groups": 1}, 1),
        ({"compression": hvd.Compression.fp16}, 1),
        ({"sparse_as_dense": True}, 1),
        ({"op": hvd.Sum}, hvd.size()),
        ({"backward_passes_per_step": 2}, 2),
    ):
        mine = model()
        given = {name: value(mine) if callable(value) and name != "compression" else value for name, value in options.items()}
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), lr=0.1), **given)
        assert [w.category for w in seen] == [DeprecationWarning] * ("num_groups" in options), options
        for _ in range(options.get("backward_passes_per_step", 1)):
            loss_of(mine, hvd.rank()).backward()
        optimizer.synchronize()
        for p, q in zip(mine.parameters(), alone.parameters()):
            torch.testing.assert_close(p.grad, q.grad * factor, rtol=5e-3, atol=1e-4)
        with optimizer.skip_synchronize():
            optimizer.step()


CHECKS = (
    scales_are_rounded_where_horovod_rounds,
    some_rank_finds_a_handle_that_is_not_ready,
    slices_of_one_tensor_are_reduced,
    gradients_have_horovods_values_in_every_type,
    a_name_in_flight_is_refused_on_its_rank_alone,
    a_rank_that_has_joined_adds_zeros,
    what_a_joined_rank_is_missing_from,
    sets_work_beside_each_other,
    every_option_of_the_optimizer_averages,
)


def programs():
    import horovod.torch as hvd
    import rueda.torch
    import torch

    assert hvd.allreduce is rueda.torch.allreduce
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "average is deprecated", DeprecationWarning)
        for check in CHECKS:
            try:
                check(hvd, torch)
            except BaseException as error:
                raise AssertionError(f"{check.__name__}: {type(error).__name__}: {error}") from error
            hvd.barrier()
    return len(CHECKS)


@pytest.mark.parametrize("size, strict", [
    (3, "1"),
    *(pytest.param(size, strict, marks=pytest.mark.slow) for size, strict in ((2, "0"), (2, "1"), (3, "0"), (5, "1"))),
])  # fmt: skip
def test_programs_in_the_style_of_horovods_own(size, strict):
    outcome = run_ranks(size, programs, env={"RUEDA_HOROVOD_STRICT": strict}, options=["--horovod"])
    assert results(outcome) == [len(CHECKS)] * size
