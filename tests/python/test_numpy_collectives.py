"""Every collective on NumPy arrays, exact, for every dtype."""

import numpy as np
import rueda as hvd
from expect import REDUCE, raises, same
from worlds import ranks

UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
INTEGERS = UNSIGNED + [np.int8, np.int16, np.int32, np.int64]
FLOATS = [np.float16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
DTYPES = [np.bool_] + INTEGERS + FLOATS + COMPLEX
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 3, 2)]


def example(rank, dtype, shape):
    """Small numbers, so that sums and products are exact in every dtype."""
    count = int(np.prod(shape))
    if dtype is np.bool_:
        return ((np.arange(count) + rank) % 3 == 0).reshape(shape)
    if dtype in COMPLEX:
        turned = (np.arange(count) * 3 + rank) % 5 - 2j
        return (turned * 1j ** np.arange(count)).astype(dtype).reshape(shape)
    return ((np.arange(count) + rank) % 4 + 1).astype(dtype).reshape(shape)


def all_examples(dtype, shape):
    return [example(rank, dtype, shape) for rank in range(hvd.size())]


def cells(shapes=SHAPES):
    """(name, dtype, shape) of every combination."""
    for dtype in DTYPES:
        for shape in shapes:
            yield f"{np.dtype(dtype).name}{list(shape)}", dtype, shape


@ranks(1, 2, 3)
def test_allreduce_is_exact_for_every_dtype_op_and_shape():
    for name, dtype, shape in cells():
        mine, everyone = example(hvd.rank(), dtype, shape), all_examples(dtype, shape)
        for op, reduce in REDUCE.items():
            if dtype in COMPLEX and op in ("Min", "Max"):
                with raises(ValueError, f"of {np.dtype(dtype)} tensors", "complex numbers have no order"):
                    hvd.allreduce(mine, name=f"{op}{name}", op=getattr(hvd, op))
                continue
            expected = reduce(everyone).astype(dtype)
            result = hvd.allreduce(mine, name=f"{op}{name}", op=getattr(hvd, op))
            same(result, expected)
            same(mine, everyone[hvd.rank()])
            copy = mine.copy()
            assert hvd.allreduce_(copy, name=f"{op}_{name}", op=getattr(hvd, op)) is copy
            same(copy, expected)


@ranks(1, 2, 3)
def test_average_divides_and_truncates_integers_toward_zero():
    for name, dtype, shape in cells():
        if dtype is np.bool_:
            with raises(ValueError):
                hvd.allreduce(example(0, dtype, shape), name="average" + name)
            continue
        everyone = [
            value if dtype in UNSIGNED else -value for value in all_examples(dtype, shape)
        ]
        total = np.sum(everyone, axis=0, dtype=np.complex128 if dtype in COMPLEX else np.float64)
        if dtype in INTEGERS:
            expected = np.trunc(total / hvd.size()).astype(dtype)
        else:
            expected = (total / hvd.size()).astype(dtype)
        result = hvd.allreduce(everyone[hvd.rank()], name="average" + name)
        if dtype in INTEGERS or hvd.size() < 3:
            same(result, expected)
        else:  # a third is not exact, and 1/3 times the sum may differ from the sum over 3
            np.testing.assert_allclose(result, expected, rtol=2 * np.finfo(dtype).eps)


@ranks(1, 2, 3)
def test_scales_apply_before_and_after():
    for dtype in INTEGERS + FLOATS + COMPLEX:
        mine = example(hvd.rank(), dtype, (6,))
        total = np.sum(all_examples(dtype, (6,)), axis=0, dtype=dtype)
        name = np.dtype(dtype).name
        result = hvd.allreduce(mine, op=hvd.Sum, name="pre" + name, prescale_factor=2.0)
        same(result, (total * 2).astype(dtype))
        result = hvd.allreduce(mine, op=hvd.Sum, name="post" + name, postscale_factor=3.0)
        same(result, (total * 3).astype(dtype))


@ranks(2)
def test_unsigned_integers_use_all_their_bits():
    for dtype in UNSIGNED:
        most, name = np.iinfo(dtype).max, np.dtype(dtype).name
        mine = np.array([most, 2, most - 3] if hvd.rank() == 0 else [1, most, 4], dtype)
        same(hvd.allreduce(mine, op=hvd.Max, name="max" + name), np.array([most, most, most - 3], dtype))
        same(hvd.allreduce(mine, op=hvd.Min, name="min" + name), np.array([1, 2, 4], dtype))
        same(hvd.allreduce(mine, op=hvd.Sum, name="sum" + name), np.array([0, 1, 0], dtype))
        half = np.array([most - 1 if hvd.rank() == 0 else 0], dtype)
        same(hvd.allreduce(half, name="average" + name), np.array([most // 2], dtype))


@ranks(1, 2, 3)
def test_allgather_concatenates_unequal_parts_in_rank_order():
    for name, dtype, shape in cells([(1,), (3, 5), (2, 0, 3)]):
        parts = [
            example(rank, dtype, (shape[0] * (rank + 1),) + shape[1:]) for rank in range(hvd.size())
        ]
        parts[0] = parts[0][:0]  # one rank may give nothing
        same(hvd.allgather(parts[hvd.rank()], name=name), np.concatenate(parts))


@ranks(1, 2, 3)
def test_broadcast_gives_everybody_the_roots_values():
    for name, dtype, shape in cells():
        for root in range(hvd.size()):
            mine = example(hvd.rank(), dtype, shape)
            expected = example(root, dtype, shape)
            same(hvd.broadcast(mine, root, name=f"{name}{root}"), expected)
            same(mine, example(hvd.rank(), dtype, shape))
            assert hvd.broadcast_(mine, root, name=f"{name}{root}_") is mine
            same(mine, expected)


@ranks(1, 2, 3)
def test_reducescatter_gives_each_rank_its_rows_of_the_sum():
    for name, dtype, shape in cells([(1,), (7,), (5, 3), (0, 2), (2, 0)]):
        mine = example(hvd.rank(), dtype, shape)
        total = REDUCE["Sum"](all_examples(dtype, shape)).astype(dtype)
        expected = np.array_split(total, hvd.size())[hvd.rank()]
        same(hvd.reducescatter(mine, name=name, op=hvd.Sum), expected)
        if dtype in INTEGERS:
            same(hvd.reducescatter(mine, name="avg" + name), expected // hvd.size())


@ranks(1, 2, 3)
def test_alltoall_delivers_every_split_and_says_how_many_rows_came():
    size, rank = hvd.size(), hvd.rank()
    for name, dtype, shape in cells([(1,), (1, 3), (1, 0)]):
        # Rank r sends r + p rows to rank p; one row more stays where it is.
        splits = [[sender + to for to in range(size)] for sender in range(size)]
        full = [example(r, dtype, (sum(splits[r]) + 1,) + shape[1:]) for r in range(size)]
        expected = []
        for sender in range(size):
            first = sum(splits[sender][:rank])
            expected.append(full[sender][first : first + splits[sender][rank]])
        output, received = hvd.alltoall(full[rank], splits=splits[rank], name=name)
        same(output, np.concatenate(expected))
        same(received, np.array([splits[r][rank] for r in range(size)], np.int32))


@ranks(1, 2, 3)
def test_alltoall_without_splits_sends_equal_parts_and_returns_the_output_alone():
    size, rank = hvd.size(), hvd.rank()
    mine = np.arange(2 * size) + 100 * rank
    expected = np.concatenate([np.arange(2) + 2 * rank + 100 * sender for sender in range(size)])
    same(hvd.alltoall(mine), expected)
    output, received = hvd.synchronize(hvd.alltoall_async(mine))
    same(output, expected)
    same(received, np.full(size, 2, np.int32))


@ranks(1, 2, 3)
def test_groups_reduce_as_one_and_return_tuples():
    size, rank = hvd.size(), hvd.rank()
    tensors = [np.full(3, rank + 1, np.float32), np.full((2, 2), rank, np.int64)]
    sums = [
        np.full(3, size * (size + 1) / 2, np.float32),
        np.full((2, 2), size * (size - 1) // 2, np.int64),
    ]
    outputs = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert type(outputs) is tuple
    for output, expected in zip(outputs, sums):
        same(output, expected)
    gathered = hvd.grouped_allgather(tensors, name="gathered")
    same(gathered[1], np.concatenate([np.full((2, 2), r, np.int64) for r in range(size)]))
    scattered = hvd.grouped_reducescatter(tensors, name="scattered", op=hvd.Sum)
    same(scattered[0], np.array_split(sums[0], size)[rank])
    assert hvd.grouped_allreduce_(tensors, name="placed", op=hvd.Sum)[0] is tensors[0]
    same(tensors[0], sums[0])


@ranks(1, 2, 3)
def test_arrays_that_are_not_contiguous_are_copied_or_refused_in_place():
    size, rank = hvd.size(), hvd.rank()
    whole = np.arange(24.0).reshape(4, 6) + rank
    total = sum(np.arange(24.0).reshape(4, 6) + r for r in range(size))
    same(hvd.allreduce(whole.T, op=hvd.Sum), total.T)
    same(hvd.allreduce(whole[:, ::2], op=hvd.Sum), total[:, ::2])
    same(hvd.allreduce(whole[1], op=hvd.Sum), total[1])
    same(hvd.allgather(whole[::2, 1:3])[:2], whole[::2, 1:3] - rank)
    with raises(ValueError, "required to be contiguous"):
        hvd.allreduce_(whole.T)


@ranks(1, 2, 3)
def test_many_small_and_one_large_operation_in_flight_together():
    size = hvd.size()
    large = hvd.allreduce_async(np.ones(3_000_001, np.float32), name="large", op=hvd.Sum)
    small = [hvd.allreduce_async(np.full(5, i), name=f"s{i}", op=hvd.Sum) for i in range(200)]
    parts = [hvd.allgather_async(np.full(2, i), name=f"g{i}") for i in range(50)]
    for i, handle in enumerate(small):
        same(hvd.synchronize(handle), np.full(5, i * size))
    for i, handle in enumerate(parts):
        same(hvd.synchronize(handle), np.full(2 * size, i))
    same(hvd.synchronize(large), np.full(3_000_001, size, np.float32))


@ranks(2, 3)
def test_send_and_recv_match_by_ranks_and_tag_in_order():
    size, rank = hvd.size(), hvd.rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    sends = [hvd.send_async(np.full(4, 10 * rank + i), right) for i in range(3)]
    sends.append(hvd.send_async(np.full(2, rank, np.float32), right, tag=7))
    tagged = hvd.recv(np.empty(2, np.float32), left, tag=7)
    same(tagged, np.full(2, left, np.float32))
    for i in range(3):
        same(hvd.recv(np.empty(4, np.int64), left), np.full(4, 10 * left + i))
    for handle in sends:
        assert hvd.synchronize(handle) is None


@ranks(2, 3)
def test_sendrecv_sends_one_way_while_another_form_comes():
    size, rank = hvd.size(), hvd.rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    for _ in range(3):  # ranks that all sent first would wait for each other
        same(hvd.sendrecv(np.full((1000, 1000), rank), right, left), np.full((1000, 1000), left))
    like = np.empty((left, 2), np.complex64)  # of each rank another
    got = hvd.sendrecv(np.full((rank, 2), 1j, np.complex64), right, left, like=like, tag=7)
    same(got, np.full((left, 2), 1j, np.complex64))
    handle = hvd.sendrecv_async([rank], right, left)
    same(hvd.synchronize(handle), np.array([left]))
    with raises(ValueError, "like: expected an array, got int"):
        hvd.sendrecv(np.ones(2), right, left, like=3)
    with raises(ValueError, f"cannot receive from rank {rank}"):
        hvd.sendrecv(np.ones(2), right, rank)
    with raises(ValueError, "tag -1"):
        hvd.sendrecv(np.ones(2), right, left, tag=-1)


@ranks(2)
def test_sendrecv_says_what_does_not_fit_on_both_ranks_and_the_job_goes_on():
    other = 1 - hvd.rank()
    with raises(hvd.HorovodInternalError, "bytes"):
        hvd.sendrecv(np.ones(2 + hvd.rank()), other, other)
    same(hvd.sendrecv(np.full(2, hvd.rank()), other, other), np.full(2, other))


@ranks(1, 2, 3)
def test_objects_travel_from_the_root_and_from_everybody():
    rank, size = hvd.rank(), hvd.size()
    found = hvd.broadcast_object({"from": rank, "list": [1, "two"]}, root_rank=size - 1)
    assert found == {"from": size - 1, "list": [1, "two"]}
    assert hvd.allgather_object("x" * rank, name="objects") == ["x" * r for r in range(size)]
    arrays = {"b": np.full(3, rank), "a": np.full((), rank)}
    hvd.broadcast_parameters(arrays, 0)
    same(arrays["b"], np.zeros(3, np.int64))


@ranks(2)
def test_an_object_that_cannot_be_pickled_makes_every_rank_raise():
    unpicklable = type("Stubborn", (), {"__reduce__": lambda self: 1 / 0})()
    mine = unpicklable if hvd.rank() == 1 else 5
    with raises(ZeroDivisionError if hvd.rank() == 1 else hvd.HorovodInternalError):
        hvd.broadcast_object(mine, root_rank=1)
    with raises(ZeroDivisionError if hvd.rank() == 1 else hvd.HorovodInternalError):
        hvd.allgather_object(mine)


@ranks(2)
def test_compression_travels_as_16_bit_and_restores_the_type():
    mine = np.array([1.0, 0.5, -2.0]) * (hvd.rank() + 1)
    result = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
    same(result, np.array([3.0, 1.5, -6.0]))


@ranks(1, 2, 3)
def test_topology_is_consistent():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert 0 <= hvd.rank() < hvd.size()
    assert hvd.local_size() * hvd.cross_size() == hvd.size()
    assert sorted(hvd.allgather(np.array([hvd.rank()]))) == list(range(hvd.size()))
    assert hvd.global_process_set.size() == hvd.size()
    assert hvd.global_process_set.rank() == hvd.rank()
