"""Collectives on PyTorch tensors: every dtype, the return conventions, the gradients."""

import warnings

import numpy as np
import rueda.torch as hvd
import torch
from expect import raises
from rueda.torch import _sparse
from worlds import ranks

WORLD = "torch"

# PyTorch has the larger ones since 2.3.
UNSIGNED = [getattr(torch, n) for n in ("uint8", "uint16", "uint32", "uint64") if hasattr(torch, n)]
INTEGERS = UNSIGNED + [torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool] + INTEGERS + FLOATS + COMPLEX
SHAPES = [(), (0,), (5,), (3, 4), (2, 0)]


def same(actual, expected):
    assert isinstance(actual, torch.Tensor), type(actual)
    assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    assert torch.equal(actual, expected), f"{actual} instead of {expected}"


def example(rank, dtype, shape):
    count = int(np.prod(shape))
    values = (torch.arange(count) + rank) % 4
    if dtype.is_complex:
        return torch.complex(values + 1.0, values * 3.0 % 5 - rank).to(dtype).reshape(shape)
    return (values % 2 == 0 if dtype == torch.bool else (values + 1).to(dtype)).reshape(shape)


def stacked(dtype, shape):
    return torch.stack([example(rank, dtype, shape) for rank in range(hvd.size())])


def reduced(op, dtype, shape):
    if dtype == torch.bool:
        everyone = stacked(dtype, shape)
        return everyone.any(0) if op in ("Sum", "Max") else everyone.all(0)
    wide = stacked(dtype, shape).to(torch.complex128 if dtype.is_complex else torch.int64)
    return {"Sum": wide.sum, "Product": wide.prod, "Min": wide.amin, "Max": wide.amax}[op](0).to(
        dtype
    )


def cells(shapes=SHAPES):
    for dtype in DTYPES:
        for shape in shapes:
            yield f"{dtype}{list(shape)}", dtype, shape


@ranks(1, 2, 3)
def test_allreduce_is_exact_for_every_dtype_op_and_shape():
    for name, dtype, shape in cells():
        mine = example(hvd.rank(), dtype, shape)
        for op in ("Sum", "Product") if dtype.is_complex else ("Sum", "Product", "Min", "Max"):
            number, expected = getattr(hvd, op), reduced(op, dtype, shape)
            same(hvd.allreduce(mine, name=f"{op}{name}", op=number), expected)
            same(mine, example(hvd.rank(), dtype, shape))
            copy = mine.clone()
            # The argument order of Horovod's own tests.
            assert hvd.allreduce_(copy, None, f"{op}{name}_", number) is copy
            same(copy, expected)


@ranks(1, 2, 3)
def test_average_is_the_default_and_truncates_integers():
    for dtype in INTEGERS + FLOATS:
        wide = stacked(dtype, (8,)).to(torch.float64).sum(0) / hvd.size()
        result = hvd.allreduce(example(hvd.rank(), dtype, (8,)), name=f"average{dtype}")
        if dtype in INTEGERS:
            same(result, wide.trunc().to(dtype))
        elif hvd.size() < 3:
            same(result, wide.to(dtype))
        else:
            torch.testing.assert_close(result, wide.to(dtype))


@ranks(1, 2, 3)
def test_gathering_scattering_and_exchanging_every_dtype():
    size, rank = hvd.size(), hvd.rank()
    for name, dtype, shape in cells([(4,), (4, 3), (4, 0)]):
        parts = [example(r, dtype, shape)[: r + 1] for r in range(size)]
        same(hvd.allgather(parts[rank], name=name), torch.cat(parts))
        mine = example(rank, dtype, shape)
        same(hvd.broadcast(mine, size - 1, name=name), example(size - 1, dtype, shape))
        rows = reduced("Sum", dtype, shape).tensor_split(size)[rank]
        same(hvd.reducescatter(mine, name=name, op=hvd.Sum), rows)
        everyone = [example(r, dtype, (size,) + shape[1:]) for r in range(size)]
        exchanged = torch.stack([everyone[r][rank] for r in range(size)])
        same(hvd.alltoall(everyone[rank], name=name), exchanged)
        assert hvd.broadcast_(mine, 0, name=name) is mine
        same(mine, example(0, dtype, shape))


@ranks(1, 2, 3)
def test_alltoall_returns_received_splits_when_splits_are_given():
    size, rank = hvd.size(), hvd.rank()
    mine = torch.full((size * (rank + 1), 2), rank)
    for splits in ([rank + 1] * size, torch.tensor([rank + 1] * size, dtype=torch.int32)):
        output, received = hvd.alltoall(mine, splits=splits)
        same(output, torch.cat([torch.full((r + 1, 2), r) for r in range(size)]))
        same(received, torch.arange(1, size + 1, dtype=torch.int32))
    for wrong in (torch.ones(size), torch.ones(size, dtype=torch.int64), torch.ones(1, size).int()):
        with raises(ValueError):
            hvd.alltoall(mine, splits=wrong)


@ranks(1, 2, 3)
def test_groups_return_tuples():
    size, rank = hvd.size(), hvd.rank()
    tensors = [torch.full((3,), float(rank)), torch.full((2, 2), rank)]
    total = size * (size - 1) // 2
    outputs = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert type(outputs) is tuple
    same(outputs[0], torch.full((3,), float(total)))
    same(outputs[1], torch.full((2, 2), total))
    same(hvd.grouped_allgather(tensors)[0], torch.arange(float(size)).repeat_interleave(3))
    scattered = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    same(scattered[1], torch.full((2, 2), total).tensor_split(size)[rank])
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[1] is tensors[1]
    same(tensors[1], torch.full((2, 2), total))


@ranks(1, 2, 3)
def test_views_and_layouts():
    size, rank = hvd.size(), hvd.rank()
    whole = torch.arange(24.0).reshape(4, 6) + rank
    total = torch.arange(24.0).reshape(4, 6) * size + size * (size - 1) / 2
    same(hvd.allreduce(whole.t(), op=hvd.Sum), total.t())
    same(hvd.allreduce(whole[1], op=hvd.Sum), total[1])
    images = whole.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    same(hvd.allreduce(images, op=hvd.Sum), total.reshape(1, 2, 3, 4))
    with raises(ValueError, "required to be contiguous"):
        hvd.allreduce_(whole.t())
    hvd.allreduce_(whole[2], op=hvd.Sum)  # a contiguous view with an offset
    same(whole[2], total[2])
    same(whole[3], torch.arange(18.0, 24.0) + rank)


@ranks(1, 2)
def test_wrong_tensors_are_refused():
    with raises(ValueError, "max of complex64 tensors is not defined", "complex numbers have no order"):
        hvd.allreduce(torch.empty(2, dtype=torch.complex64), op=hvd.Max)
    for name in ("complex64", "uint16"):
        if hasattr(torch, name):
            with raises(ValueError, f"Adasum of {name} tensors is not defined", "float32"):
                hvd.allreduce(torch.empty(2, dtype=getattr(torch, name)), op=hvd.Adasum)
    with raises(ValueError, "is not supported."):
        hvd.allreduce(torch.empty(2, dtype=torch.quint8))
    with raises(ValueError, "meta", "is not supported."):
        hvd.allreduce(torch.zeros(2, device="meta"))
    with raises(ValueError, "is not supported."):
        hvd.allreduce(torch.zeros(2, 2).to_sparse())
    with raises(ValueError, "expected a torch.Tensor"):
        hvd.allreduce_([1.0])
    with raises(hvd.HorovodInternalError, "rank-zero tensor"):
        hvd.allgather(torch.tensor(1.0))
    with raises(ValueError, "does not support scalar inputs"):
        hvd.reducescatter(torch.tensor(1.0))


@ranks(1, 2, 3)
def test_complex_tensors_of_every_form():
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.complex64, torch.complex128):
        for shape in ((), (3,), (4, 2), (0,)):
            everyone = [torch.full(shape, 1.0 + r + 2j * r, dtype=dtype) for r in range(size)]
            for step in range(3):  # the third takes the short way
                mine, name = everyone[rank].clone(), f"complex.{dtype}.{len(shape)}.{sum(shape)}"
                same(hvd.allreduce(mine, op=hvd.Sum, name=name), sum(everyone))
                same(hvd.allreduce(mine.conj(), op=hvd.Sum), sum(everyone).conj().resolve_conj())
                same(hvd.allreduce_(mine.clone(), op=hvd.Average, name=name), sum(everyone) / size)
                same(hvd.broadcast(mine, size - 1, name=name), everyone[-1])
                same(hvd.synchronize(hvd.broadcast_async_(mine.clone(), 0, name=name)), everyone[0])
                if shape:
                    same(hvd.allgather(mine, name=name), torch.cat(everyone))
        rows = torch.arange(2 * size).to(dtype) * 1j + rank
        same(hvd.reducescatter(rows, op=hvd.Sum), sum(rows - rank + r for r in range(size))[2 * rank :][:2])
        same(hvd.alltoall(rows)[::2], torch.arange(size).to(dtype) + 2j * rank)
    with raises(hvd.HorovodInternalError, "rank-zero tensor"):
        hvd.allgather(torch.tensor(1j))


@ranks(2)
def test_a_complex_parameter_is_trained():
    weight = torch.nn.Parameter(torch.full((3, 2), 1.0 + 1j * hvd.rank()))
    hvd.broadcast_parameters([("w", weight)], 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("w", weight)])
    for step in range(3):
        optimizer.zero_grad()
        (weight * (1.0 + hvd.rank() * 1j)).conj().abs().square().sum().backward()
        alone = weight.detach() * 2 * (1 + 2) / 2  # the mean of |1|^2 and |1 + 1j|^2, times 2
        optimizer.synchronize()
        torch.testing.assert_close(weight.grad.resolve_conj(), alone)
        with optimizer.skip_synchronize():
            optimizer.step()


@ranks(2)
def test_gradients_of_complex_tensors():
    size, rank = hvd.size(), hvd.rank()
    for form in (hvd.Sum, hvd.Average):
        x = torch.tensor([1 + 2j, 3j], dtype=torch.complex128, requires_grad=True)
        weight = torch.tensor([2 - 1j, 1j + rank], dtype=torch.complex128)
        (hvd.allreduce(x, op=form) * weight).sum().abs().square().backward()
        # Each rank has its share of the gradient of all losses, as autograd of one process has it.
        alone = x.detach().clone().requires_grad_()
        weights = [torch.tensor([2 - 1j, 1j + r], dtype=torch.complex128) for r in range(size)]
        total = alone * size if form == hvd.Sum else alone
        sum((total * w).sum().abs().square() for w in weights).backward()
        torch.testing.assert_close(x.grad * size, alone.grad)
    x = torch.full((1,), 1j, requires_grad=True)
    (hvd.allgather(x) * torch.tensor([1j, 2.0])).sum().real.backward()
    torch.testing.assert_close(x.grad, torch.tensor([[-1j], [2.0 + 0j]][rank], dtype=x.dtype))


@ranks(2)
def test_unsigned_integers_use_all_their_bits():
    rank = hvd.rank()
    for dtype in UNSIGNED:
        most, name = 2 ** (8 * torch.empty(0, dtype=dtype).element_size()) - 1, str(dtype)
        mine = torch.tensor([most if rank == 0 else 1, 3], dtype=dtype)
        assert hvd.allreduce(mine, op=hvd.Max, name=name).tolist() == [most, 3]
        assert hvd.allreduce(mine, op=hvd.Min, name=name + "min").tolist() == [1, 3]
        assert hvd.allreduce(mine, name=name + "average").tolist() == [0, 3]
        assert hvd.broadcast(mine, 0, name=name).tolist() == [most, 3]


@ranks(2, 3)
def test_compression_casts_floats_only():
    mine = torch.tensor([1.0, 0.5, 1 / 3]) * (hvd.rank() + 1)
    for compression, dtype in (
        (hvd.Compression.fp16, torch.float16),
        (hvd.Compression.bf16, torch.bfloat16),
    ):
        parts = [(torch.tensor([1.0, 0.5, 1 / 3]) * (r + 1)).to(dtype) for r in range(hvd.size())]
        expected = torch.stack(parts).float().sum(0).to(dtype).float()
        same(hvd.allreduce(mine, op=hvd.Sum, compression=compression), expected)
        whole = torch.tensor([hvd.rank()])
        result = hvd.allreduce(whole, op=hvd.Sum, compression=compression)
        same(result, torch.tensor([sum(range(hvd.size()))]))


def gradient(function, *tensors, grad=None):
    """Gradients of the tensors when the gradient of the result is ``grad`` or ones."""
    result = function(*tensors)
    result.backward(torch.ones_like(result) if grad is None else grad)
    return [tensor.grad for tensor in tensors]


@ranks(1, 2, 3)
def test_gradients_are_horovods():
    size, rank = hvd.size(), hvd.rank()

    def leaf(*shape):
        return torch.ones(*shape, requires_grad=True)

    (grad,) = gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), leaf(3))
    same(grad, torch.full((3,), float(size)))
    (grad,) = gradient(lambda x: hvd.allreduce(x, prescale_factor=2.0), leaf(3))
    torch.testing.assert_close(grad, torch.full((3,), 2.0))
    (grad,) = gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), leaf(3))
    torch.testing.assert_close(grad, torch.ones(3))
    grads = gradient(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum)[1], leaf(3), leaf(2))
    same(grads[1], torch.full((2,), float(size)))
    same(grads[0], torch.zeros(3))

    rows = [r + 1 for r in range(size)]
    upstream = torch.cat([torch.full((n, 2), float(r)) for r, n in enumerate(rows)])
    (grad,) = gradient(hvd.allgather, leaf(rank + 1, 2), grad=upstream)
    torch.testing.assert_close(grad, torch.full((rank + 1, 2), float(rank)))
    (grad,) = gradient(lambda x: hvd.grouped_allgather([x])[0], leaf(rank + 1, 2), grad=upstream)
    torch.testing.assert_close(grad, torch.full((rank + 1, 2), float(rank)))

    (grad,) = gradient(lambda x: hvd.broadcast(x, size - 1), leaf(3))
    torch.testing.assert_close(grad, torch.full((3,), float(rank == size - 1)))
    (grad,) = gradient(lambda x: hvd.alltoall(x, [1] * size)[0], leaf(size + 1, 2))
    same(grad, torch.cat([torch.ones(size, 2), torch.zeros(1, 2)]))

    for op, expected in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        for dtype in (torch.float32, torch.float16):
            x = torch.ones(4, 2, dtype=dtype, requires_grad=True)
            (grad,) = gradient(lambda x: hvd.reducescatter(x, op=op), x)
            same(grad, torch.full((4, 2), expected, dtype=dtype))
        (grad,) = gradient(lambda x: hvd.grouped_reducescatter([x], op=op)[0], leaf(4))
        same(grad, torch.full((4,), expected))

    x = leaf(3)
    hvd.allreduce(x, name="expanded").sum().backward()  # a gradient that is not contiguous
    torch.testing.assert_close(x.grad, torch.ones(3))


@ranks(1, 2, 3)
def test_gradients_of_min_max_and_product():
    """Those of the sum of all ranks' losses, checked against torch on all values at once."""
    rank, size = hvd.rank(), hvd.size()
    table = torch.tensor(
        [[1.0, 5.0, 2.0, 0.0, 0.0], [3.0, 5.0, -1.0, 2.0, 0.0], [2.0, 4.0, 0.5, 3, 1]]
    )
    slopes = torch.tensor([[1.0, 2, 3, 4, 5], [5.0, 4, 3, 2, 1], [0.5, 1, 2, 3, 4]])[:size]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for op, function in (("Min", torch.amin), ("Max", torch.amax), ("Product", torch.prod)):
            for pre, post in ((1.0, 1.0), (2.0, -0.5)):
                everyone = table[:size].to(dtype).requires_grad_()
                result = function(everyone * pre, 0) * post
                (result * slopes.to(dtype).sum(0)).sum().backward()
                options = dict(op=getattr(hvd, op), prescale_factor=pre, postscale_factor=post)
                for name in (None, f"{op}.{dtype}.{pre}"):
                    x = table[rank].to(dtype).requires_grad_()
                    output = hvd.allreduce(x, name=name, **options)
                    same(output.detach(), result.detach())
                    (output * slopes[rank].to(dtype)).sum().backward()
                    same(x.grad, everyone.grad[rank])
                    y = table[rank].to(dtype).requires_grad_()
                    pair = hvd.grouped_allreduce([y.detach(), y], name=name, **options)
                    (pair[1] * slopes[rank].to(dtype)).sum().backward()
                    same(y.grad, everyone.grad[rank])


@ranks(2)
def test_forward_mode_is_refused_and_not_forgotten():
    forward = torch.autograd.forward_ad
    for name in (None, "forward"):
        for _ in range(4):  # the last times it could take the short way
            hvd.allreduce(torch.ones(2), name=name), hvd.broadcast(torch.ones(2), 0, name=name)
            with forward.dual_level():
                x = forward.make_dual(torch.ones(2), torch.ones(2))
                for call in (lambda: hvd.allreduce(x, name=name), lambda: hvd.broadcast(x, 0, name)):  # noqa: B023
                    with raises(NotImplementedError, "jvp"):
                        call()


@ranks(2, 3)
def test_sparse_allreduce_adds_by_index():
    rank, size = hvd.rank(), hvd.size()
    sparse = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 2,))
    result = hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)
    expected = torch.cat([torch.tensor([float(size)]), torch.full((size,), 2.0), torch.zeros(1)])
    same(result().to_dense(), expected)


@ranks(2)
def test_objects_and_results_survive_shared_use():
    assert hvd.broadcast_object({"x": torch.ones(2)} if hvd.rank() == 0 else None)["x"].sum() == 2
    assert hvd.allgather_object(hvd.rank()) == [0, 1]
    kept = [hvd.allgather(torch.full((100,), i)) for i in range(50)]
    for i, tensor in enumerate(kept):
        same(tensor, torch.full((200,), i))
    assert kept[0].add_(1).sum() == 200  # results can be written


@ranks(2)
def test_what_autograd_has_saved_is_not_overwritten_in_silence():
    if not hasattr(torch._C, "_increment_version"):
        return  # PyTorch before 2.1 offers no way to say so
    weight = torch.ones(3, requires_grad=True)
    for change in (
        lambda x: hvd.allreduce_(x, name="saved.a"),
        lambda x: hvd.broadcast_(x, 0, name="saved.b"),
        lambda x: hvd.synchronize(hvd.allreduce_async_(x, name="saved.c")),
        lambda x: hvd.grouped_allreduce_([x], name="saved.d"),
        lambda x: hvd.allreduce(torch.ones(3), name="saved.e", out=x),
    ):
        for _ in range(4):  # the short way comes later
            saved = torch.ones(3)
            loss = (weight * saved).sum()
            change(saved)
            with raises(RuntimeError, "modified by an inplace operation"):
                loss.backward()
    with torch.inference_mode():
        for _ in range(4):
            same(hvd.allreduce_(torch.ones(3), op=hvd.Sum, name="inference"), torch.full((3,), 2.0))


@ranks(1, 2)
def test_a_name_is_a_string():
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.allreduce_async):
        with raises(TypeError, "name must be a string, not int: 5"):
            call(torch.ones(2), name=5)


@ranks(2)
def test_sparse_tensors_need_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (3,), **_sparse._UNCHECKED)
        total = hvd.sparse_allreduce_async(row, name="quiet", op=hvd.Sum)()
    assert total.to_dense().tolist() == [1.0, 1.0, 0.0]


@ranks(1, 2, 3)
def test_a_scaled_half_is_rounded_after_the_prescale_after_the_sum_and_at_the_end():
    torch.manual_seed(1)
    values, size = (torch.rand(1000) * 200 - 100).half(), hvd.size()
    for pre, post in ((0.3712, 1.0), (1.0, 0.3712), (0.7, 1.3)):
        factors = {"prescale_factor": pre, "postscale_factor": post}
        scaled = (values.float() * torch.tensor(pre)).half()
        total = (scaled.float() * size).half()
        same(hvd.allreduce(values, op=hvd.Sum, **factors), (total.float() * torch.tensor(post)).half())


@ranks(2, 3)
def test_an_average_with_a_postscale_is_one_multiplication():
    """docs/numerics.md: by postscale / n, rounded to the type's arithmetic."""
    torch.manual_seed(2)
    for dtype in (torch.float32, torch.float64):
        everyone, size = torch.randn(hvd.size(), 1000, dtype=dtype), hvd.size()
        total = everyone[0]
        for other in everyone[1:]:
            total = total + other
        for post in (1.0, 0.3712, 3.0, 1e-3):
            want = total * torch.tensor(post / size, dtype=torch.float64).to(dtype)
            same(hvd.allreduce(everyone[hvd.rank()], op=hvd.Average, postscale_factor=post), want)


@ranks(2, 3)
def test_sendrecv_gives_a_new_tensor_of_the_form_that_comes():
    size, rank = hvd.size(), hvd.rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        mine = example(rank, dtype, (3, 4))
        same(hvd.sendrecv(mine, right, left), example(left, dtype, (3, 4)))
        same(mine, example(rank, dtype, (3, 4)))
    turned = torch.arange(6.0).view(2, 3).t() + rank  # not contiguous
    same(hvd.sendrecv(turned, right, left), torch.arange(6.0).view(2, 3).t() + left)
    # Another shape and type each way: of rank r, r + 1 numbers, halves on even ranks.
    kinds = [torch.float16 if r % 2 == 0 else torch.float64 for r in range(size)]
    mine = torch.full((rank + 1,), float(rank), dtype=kinds[rank])
    like = torch.empty(left + 1, dtype=kinds[left], device="meta")
    same(hvd.sendrecv(mine, right, left, like=like, tag=3), torch.full((left + 1,), float(left), dtype=kinds[left]))
    handles = [hvd.sendrecv_async(torch.full((2,), float(rank + i)), right, left) for i in range(4)]
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), torch.full((2,), float(left + i)))
    wants = torch.ones(2, requires_grad=True)
    with raises(RuntimeError, "sendrecv has no gradient"):
        hvd.sendrecv(wants, right, left)
    with torch.no_grad():
        assert not hvd.sendrecv(wants, right, left).requires_grad
    with raises(ValueError, "like: expected a torch.Tensor, got list"):
        hvd.sendrecv(torch.ones(2), right, left, like=[2])
