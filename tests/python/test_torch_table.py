"""The whole table: every form of every collective, with every dtype and reduction, is exact."""

import rueda.torch as hvd
import torch
from expect import raises
from test_torch_collectives import DTYPES, FLOATS, INTEGERS, UNSIGNED, same
from worlds import ranks

WORLD = "torch"

REDUCTIONS = ("Sum", "Average", "Min", "Max", "Product")


def piece(rank, dtype, rows=5):
    """Small numbers, so that every reduction of up to three is exact in every dtype."""
    values = (torch.arange(rows * 2).reshape(rows, 2) * 5 + rank * 3) % 4
    if dtype == torch.bool:
        return values > 1
    if dtype.is_complex:
        return torch.complex(values - 1.0, values * 3.0 % 4 + rank).to(dtype)
    return (values - (0 if dtype in UNSIGNED else 1)).to(dtype)


def expected(op, dtype):
    everyone = torch.stack([piece(r, dtype) for r in range(hvd.size())])
    if dtype.is_complex:
        parts = torch.view_as_real(everyone).sum(0)
        mean = parts * torch.tensor(1 / hvd.size(), dtype=parts.dtype)
        return everyone.prod(0) if op == "Product" else torch.view_as_complex(parts if op == "Sum" else mean)
    wide = everyone.to(torch.float64)
    if op == "Average":
        mean = wide.sum(0) / hvd.size()
        if dtype in INTEGERS:
            return mean.trunc().to(dtype)
        # docs/numerics.md: the sum times 1 / n, in float32 for all but float64.
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        return (wide.sum(0).to(kind) * torch.tensor(1 / hvd.size(), dtype=kind)).to(dtype)
    result = {"Sum": wide.sum, "Product": wide.prod, "Min": wide.amin, "Max": wide.amax}[op](0)
    return result.to(dtype) if dtype != torch.bool else result != 0


def reduced_in_every_form(mine, op, name):
    """(form, result, whether it must be the very tensor that was given)."""
    number = getattr(hvd, op)
    wait, pair = hvd.synchronize, lambda: [mine.clone(), mine.clone()]
    yield "sync", hvd.allreduce(mine, name=name, op=number), None
    yield "async", wait(hvd.allreduce_async(mine, name=name, op=number)), None
    copy = mine.clone()
    yield "in place", hvd.allreduce_(copy, name=name, op=number), copy
    copy = mine.clone()
    yield "async in place", wait(hvd.allreduce_async_(copy, name=name, op=number)), copy
    for form in ("", "_async"):
        function = getattr(hvd, "grouped_allreduce" + form)
        both = function(pair(), name=name, op=number)
        both = wait(both) if form else both
        assert type(both) is tuple and len(both) == 2
        yield "grouped" + form, both[1], None
        copies = pair()
        both = getattr(hvd, function.__name__ + "_")(copies, name=name, op=number)
        both = wait(both) if form else both
        assert both[0] is copies[0]
        yield "grouped in place" + form, both[1], copies[1]


@ranks(2, 3)
def test_reductions():
    for dtype in DTYPES:
        for op in REDUCTIONS:
            mine = piece(hvd.rank(), dtype)
            if dtype == torch.bool and op == "Average":
                with raises(ValueError, "bool"):
                    hvd.allreduce(mine, op=hvd.Average)
                continue
            if dtype.is_complex and op in ("Min", "Max"):
                for function in (hvd.allreduce, hvd.allreduce_async):
                    with raises(ValueError, "complex numbers have no order"):
                        function(mine, op=getattr(hvd, op))
                continue
            want = expected(op, dtype)
            for form, result, given in reduced_in_every_form(mine, op, f"{op}.{dtype}"):
                same(result, want)
                assert given is None or given is result, form
                same(mine, piece(hvd.rank(), dtype))
            if op not in ("Sum", "Average"):
                continue
            rows, number = want.tensor_split(hvd.size())[hvd.rank()], getattr(hvd, op)
            name = f"{op}.{dtype}"
            same(hvd.reducescatter(mine, name=name, op=number), rows)
            same(hvd.synchronize(hvd.reducescatter_async(mine, name, number)), rows)
            same(hvd.grouped_reducescatter([mine, mine], name=name, op=number)[1], rows)
            handle = hvd.grouped_reducescatter_async([mine], name, number)
            same(hvd.synchronize(handle)[0], rows)


@ranks(2, 3)
def test_moves():
    rank, size, wait = hvd.rank(), hvd.size(), hvd.synchronize
    for dtype in DTYPES:
        name = str(dtype)
        parts = [piece(r, dtype, r) for r in range(size)]  # nothing from rank 0
        whole = torch.cat(parts)
        same(hvd.allgather(parts[rank], name), whole)
        same(wait(hvd.allgather_async(parts[rank], name)), whole)
        both = hvd.grouped_allgather([parts[rank], parts[rank]], name)
        same(both[1], whole)
        same(wait(hvd.grouped_allgather_async([parts[rank]], name))[0], whole)

        mine, root = piece(rank, dtype), size - 1
        same(hvd.broadcast(mine, root, name), piece(root, dtype))
        same(wait(hvd.broadcast_async(mine, root, name)), piece(root, dtype))
        for function in (hvd.broadcast_, lambda *a: wait(hvd.broadcast_async_(*a))):
            copy = mine.clone()
            assert function(copy, root, name) is copy
            same(copy, piece(root, dtype))

        mine = piece(rank, dtype, 2 * size)
        even = torch.cat([piece(r, dtype, 2 * size)[2 * rank : 2 * rank + 2] for r in range(size)])
        two = torch.full((size,), 2, dtype=torch.int32)
        same(hvd.alltoall(mine, name=name), even)
        output, received = wait(hvd.alltoall_async(mine, name=name))
        same(output, even), same(received, two)
        # Rank r sends r rows to the first rank and one to each other.
        output, received = hvd.alltoall(mine, [rank] + [1] * (size - 1), name)
        starts = [0 if rank == 0 else r + rank - 1 for r in range(size)]
        counts = [r if rank == 0 else 1 for r in range(size)]
        rows = [piece(r, dtype, 2 * size)[s : s + counts[r]] for r, s in enumerate(starts)]
        same(output, torch.cat(rows)), same(received, torch.tensor(counts, dtype=torch.int32))


@ranks(2)
def test_infinities_nans_denormals_and_overflow():
    rank = hvd.rank()
    for dtype in FLOATS:
        info = torch.finfo(dtype)
        tiny = info.smallest_normal / 4 if dtype != torch.float64 else 5e-324
        inf, nan = float("inf"), float("nan")
        pairs = [(inf, 1), (inf, -inf), (nan, 1), (tiny, tiny), (tiny, -tiny), (info.max, info.max)]
        pairs += [(1, info.eps / 2), (-0.0, -0.0), (info.max, -info.max)]
        both = torch.tensor(pairs, dtype=torch.float64).to(dtype).t()
        wide = both.to(torch.float64) if dtype != torch.float64 else both
        want = (wide[0] + wide[1]).to(dtype)
        result = hvd.allreduce(both[rank].contiguous(), name=f"special.{dtype}", op=hvd.Sum)
        torch.testing.assert_close(result, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(result.signbit(), want.signbit() & ~want.isnan()), (result, want)
        for op, function in (("Max", torch.maximum), ("Min", torch.minimum)):
            number = getattr(hvd, op)
            result = hvd.allreduce(both[rank].contiguous(), name=f"{op}.{dtype}", op=number)
            torch.testing.assert_close(result, function(*both), rtol=0, atol=0, equal_nan=True)


@ranks(2)
def test_what_is_not_in_the_table_is_refused_with_the_list():
    unknown = [torch.complex32]
    for dtype in unknown:
        x = torch.zeros(2 * hvd.size(), dtype=dtype)
        for function in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with raises(ValueError, "is not supported.", "bool, uint8", "float64", "complex128"):
                function(x)
        with raises(ValueError, "is not supported."):
            hvd.broadcast_(x, 0)
    with raises(ValueError, "is not supported.", "sparse_allreduce_async"):
        hvd.allreduce(torch.eye(2).to_sparse())
    with raises(ValueError, "required to be contiguous"):
        hvd.allreduce_(torch.ones(2, 3).t())
