"""``out=``: the result is written to the caller's memory, by the library itself; what does not fit is refused."""

import numpy as np
import rueda as hvd
import rueda.torch as hvt
import torch
from expect import raises, same
from worlds import ranks, results, run_ranks

WORLD = "torch"


def own_rows(total):
    return np.array_split(total, hvd.size())[hvd.rank()]


def cases(rank, size):
    """(name, arguments behind the tensor, tensor, result) of every collective that has it."""
    everyone = [np.arange(14, dtype=np.float32).reshape(7, 2) + r for r in range(size)]
    yield "allreduce", {"op": hvd.Sum}, everyone[rank], sum(everyone)
    yield "allreduce", {"op": hvd.Max}, everyone[rank].astype(np.int64), everyone[-1].astype(np.int64)
    yield "allreduce", {"op": hvd.Sum}, everyone[rank].T, sum(everyone).T  # the tensor may be strided
    yield "broadcast", {"root_rank": size - 1}, everyone[rank], everyone[-1]
    yield "reducescatter", {"op": hvd.Sum}, everyone[rank], own_rows(sum(everyone))
    yield "allreduce", {"op": hvd.Sum}, np.float32(rank), np.array(sum(range(size)), np.float32)
    empty = np.empty((0, 3), np.float32)
    yield "reducescatter", {"op": hvd.Sum}, empty, empty
    yield "allgather", {}, everyone[rank][: rank + 1], np.concatenate([x[: r + 1] for r, x in enumerate(everyone)])
    yield "allgather", {}, everyone[rank].T, np.concatenate([x.T for x in everyone])
    yield "allgather", {}, empty, empty
    rows = [x[:1].repeat(2 * size, 0) for x in everyone]
    yield "alltoall", {}, rows[rank], np.concatenate([x[:2] for x in rows])
    yield "alltoall", {"splits": [1] * size}, rows[rank], np.concatenate([x[:1] for x in rows])


def alone(result):
    """Without the received splits that some alltoalls give as well."""
    return result[0] if isinstance(result, tuple) else result


def blocking(module, collective):
    call = getattr(module, collective)
    return lambda *tensor, **arguments: alone(call(*tensor, **arguments))


def asynchronous(module, collective):
    start = getattr(module, collective + "_async")
    return lambda *tensor, **arguments: alone(module.synchronize(start(*tensor, **arguments)))


@ranks(1, 2, 3)
def test_the_result_is_written_to_out_and_returned():
    for form in (blocking, asynchronous):
        for number, (collective, arguments, value, expected) in enumerate(cases(hvd.rank(), hvd.size())):
            for name in (None, f"{form.__name__}.{number}"):
                for _ in range(4 if name else 1):  # a name that comes again takes the short way
                    out = np.full_like(expected, 77, order="C")
                    result = form(hvd, collective)(value, name=name, out=out, **arguments)
                    assert result is out
                    same(out, expected)
                    before = torch.from_numpy(np.array(value))
                    given = torch.full(expected.shape, 77, dtype=before.dtype)
                    result = form(hvt, collective)(before, name=name, out=given, **arguments)
                    assert result is given and torch.equal(given, torch.from_numpy(expected.copy()))
                    same(before.numpy(), np.array(value))


@ranks(2)
def test_the_library_writes_there_itself():
    """No memory of the result's size is made: out may lie in memory that ranks share, and is reduced there."""
    count = 1 << 16
    value, out = hvd.empty(count, np.float32), hvd.empty(count, np.float32)
    value[:] = 1
    before = hvd.counter("bytes_in_place")
    for _ in range(3):
        hvd.allreduce(value, op=hvd.Sum, name="shared", out=out)
        same(out, np.full(count, 2, np.float32))
    assert hvd.counter("bytes_in_place") - before == 3 * count * 4


@ranks(2)
def test_out_may_be_the_tensor_or_a_part_of_another():
    x = np.ones(6, np.float32)
    assert hvd.allreduce(x, op=hvd.Sum, out=x) is x
    same(x, np.full(6, 2, np.float32))
    table = torch.zeros(3, 4)
    given = table[1]
    assert hvt.allreduce(torch.ones(4), op=hvd.Sum, out=given) is given
    assert torch.equal(table, torch.tensor([0.0, 2, 0])[:, None].expand(3, 4))
    again = x[:]
    assert hvd.broadcast(x, 0, out=again) is again


@ranks(2)
def test_what_does_not_fit_is_refused_and_says_what_is_expected():
    x, t = np.ones((4, 3), np.float32), torch.ones(4, 3)
    frozen = np.empty((4, 3), np.float32)
    frozen.flags.writeable = False
    for name in (None, "fits"):
        for _ in range(3):  # also once the name is persistent
            hvd.allreduce(x, name=name), hvt.allreduce(t, name=name)
            for out, reason in (
                (np.empty((3, 4), np.float32), "contiguous float32[4, 3]; it is float32[3, 4]"),
                (np.empty((4, 3)), "float32[4, 3]; it is float64[4, 3]"),
                (np.empty((3, 4), np.float32).T, "it is not contiguous, float32[4, 3]"),
                (np.empty((4, 3), ">f4"), "float32[4, 3]; it is"),
                (frozen, "writable"),
                ([[0.0] * 3] * 4, "numpy.ndarray, not a list"),
            ):
                with raises(ValueError, reason):
                    hvd.allreduce(x, name=name, out=out)
            for out, reason in (
                (torch.empty(3, 4), "contiguous float32[4, 3]; it is float32[3, 4]"),
                (torch.empty(4, 3, dtype=torch.int64), "it is int64[4, 3]"),
                (torch.empty(3, 4).t(), "it is not contiguous, float32[4, 3]"),
                (torch.eye(4, 3).to_sparse(), "is not supported."),
                (torch.empty(4, 3, device="meta"), "is not supported."),
                (np.empty((4, 3), np.float32), "expected a torch.Tensor, got ndarray"),
            ):
                for function in (hvt.allreduce, hvt.allreduce_async):
                    with raises(ValueError, reason):
                        function(t, name=name, out=out)
    with raises(ValueError, "reducescatter: out must be like the result, contiguous float32[2, 3]"):
        hvd.reducescatter(x, out=np.empty((4, 3), np.float32))
    with raises(ValueError, "broadcast: out must be"):
        hvt.broadcast(t, 0, out=torch.empty(12))
    with raises(ValueError, "out= is for compression=none"):
        hvd.allreduce(x, compression=hvd.Compression.fp16, out=np.empty_like(x))
    for compression in (hvt.Compression.bf16, hvt.Compression.int8):
        with raises(ValueError, "out= is for compression=none"):
            hvt.allreduce(t, name="small", compression=compression, out=torch.empty(4, 3))


@ranks(2)
def test_rows_that_come_must_fit_what_is_known_of_them():
    x, t, size = np.ones((4, 3), np.float32), torch.ones(4, 3), hvd.size()
    for name in (None, "rows"):
        for _ in range(3):
            for collective in ("allgather", "alltoall"):
                for module, tensor, wrong in (
                    (hvd, x, np.empty((8, 2), np.float32)),
                    (hvd, x, np.empty((8, 3))),
                    (hvt, t, torch.empty(8, 2)),
                    (hvt, t, torch.empty(8, 3, dtype=torch.int32)),
                ):
                    call = getattr(module, collective)
                    with raises(ValueError, f"{collective}: out must be like the result", "float32[8, 3]; it is"):
                        call(tensor, name=name, out=wrong)
                    with raises(ValueError, f"{collective}: out overlaps the tensor that is sent"):
                        call(tensor, name=name, out=tensor)
    with raises(ValueError, "it is float32[]"):
        hvd.allgather(x, out=np.empty((), np.float32))
    leaf = torch.ones(2, requires_grad=True)
    with raises(RuntimeError, "out= has no gradient"):
        hvt.allgather(leaf, out=torch.empty(2 * size))
    with raises(RuntimeError, "out= has no gradient"):
        hvt.alltoall(torch.ones(2), out=leaf)


def other_numbers_of_rows():
    x = np.ones((2, 3), np.float32)
    for name in (None, "too many"):
        for _ in range(3):
            out = np.empty((4 + hvd.rank(), 3), np.float32)
            with raises(hvd.HorovodInternalError, "rank 1"):
                hvd.allgather(x, name=name, out=out)
            with raises(hvd.HorovodInternalError, "rank 1"):
                hvd.alltoall(x, name=name, out=out[2:])
            same(hvd.allgather(x, name=name, out=np.empty((4, 3), np.float32)), np.ones((4, 3), np.float32))


def test_other_numbers_of_rows_are_an_error_on_every_rank():
    results(run_ranks(2, other_numbers_of_rows))


@ranks(2)
def test_memory_that_is_read_and_written_at_once_is_refused():
    whole, tensor = np.ones(12, np.float32), torch.ones(12)
    for name in (None, "overlapping"):
        for _ in range(3):
            hvd.allreduce(whole[:8], name=name), hvt.allreduce(tensor[:8], name=name)
            with raises(ValueError, "allreduce: out overlaps the tensor"):
                hvd.allreduce(whole[:8], name=name, out=whole[4:])
            with raises(ValueError, "allreduce: out overlaps the tensor"):
                hvt.allreduce(tensor[:8], name=name, out=tensor[4:])
    with raises(ValueError, "reducescatter: out overlaps the tensor"):
        hvd.reducescatter(whole, out=whole[:6])
    same(hvd.reducescatter(whole[:6], op=hvd.Sum, out=whole[6:9]), np.full(3, 2, np.float32))


@ranks(2)
def test_gradients_are_refused_as_by_pytorch():
    leaf, out = torch.ones(4, requires_grad=True), torch.zeros(4)
    for function in (hvt.allreduce, hvt.allreduce_async):
        with raises(RuntimeError, "out= has no gradient"):
            function(leaf, out=out)
        with raises(RuntimeError, "out= has no gradient"):
            function(out, out=leaf)
    with torch.no_grad():
        assert hvt.allreduce(leaf, op=hvt.Sum, out=out) is out
        assert hvt.broadcast(leaf, 0, out=torch.zeros(4)).sum() == 4
    assert torch.equal(out, torch.full((4,), 2.0)) and leaf.grad is None


@ranks(2)
def test_out_in_compiled_code():
    from rueda.torch import _compiler

    if _compiler.graph is None:
        return  # this PyTorch leaves collectives out of its graphs

    def function(x, out, rows):
        total = hvt.allreduce(x * 2, op=hvt.Sum, out=out)
        return total + 1, hvt.reducescatter(x, op=hvt.Sum, out=rows)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x, out, rows = torch.arange(4.0), torch.zeros(4), torch.zeros(2)
    everyone = torch.compile(lambda x, out: hvt.allgather(x + 1, out=out), backend="aot_eager")
    both = torch.zeros(8)
    assert torch.equal(everyone(x, both), torch.cat([x + 1] * 2)) and torch.equal(both, torch.cat([x + 1] * 2))
    more, mine = compiled(x, out, rows)
    assert torch.equal(out, 4 * x) and torch.equal(more, 4 * x + 1)
    assert torch.equal(rows, (2 * x).tensor_split(2)[hvt.rank()]) and torch.equal(mine, rows)
    torch.compiler.reset()
    wrong = torch.compile(lambda x, out: hvt.allreduce(x, out=out), backend="aot_eager")
    with raises(ValueError, "allreduce: out must be like the result, contiguous float32[4]; it is float32[5]"):
        wrong(x, torch.zeros(5))
