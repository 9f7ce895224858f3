"""What the tests of torch.distributed share: groups of backend rueda, tensors by rank, plain references."""

import contextlib
import functools
import inspect

import torch
import torch.distributed as dist

UNSIGNED = torch.uint16, torch.uint32, torch.uint64
INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX = torch.complex64, torch.complex128
MOVED_ONLY = torch.float8_e4m3fn, torch.float8_e5m2
SHAPES = (), (0,), (7,), (3, 4)
LAYOUTS = "plain", "transposed", "strided"
SUM, AVG, MIN, MAX, PRODUCT = (
    getattr(dist.ReduceOp, n) for n in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
)
BITWISE = dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR


@contextlib.contextmanager
def default_group(**arguments):
    dist.init_process_group("rueda", **arguments)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def backwards():
    """A group of all ranks in the other order, where PyTorch leaves a list as it is given."""
    size = dist.get_world_size()
    if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        return dist.new_group(range(size))
    return dist.new_group(range(size - 1, -1, -1), sort_ranks=False)


def reductions(dtype):
    """Those that a type has."""
    if dtype in COMPLEX:
        return SUM, AVG  # PyTorch itself refuses the others
    if dtype is torch.bool:
        return SUM, MIN, MAX, PRODUCT, *BITWISE
    return (SUM, AVG, MIN, MAX, PRODUCT) + (BITWISE if dtype in INTEGERS else ())


def values(rank, dtype, shape):
    """Small numbers that differ by rank and place, exact in every type, also when added and multiplied."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = [
        (place * 5 + rank * 3) % 4 + (0 if dtype is torch.bool else 1) for place in range(count)
    ]
    if dtype is torch.bool:
        numbers = [number > 1 for number in numbers]
    if dtype in COMPLEX:
        numbers = [complex(number, rank - number) for number in numbers]
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return torch.tensor(numbers, dtype=torch.float32).to(dtype).reshape(shape)
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


def laid_out(tensor, layout):
    """The same values, differently in memory."""
    if layout == "transposed" and tensor.dim() == 2:
        return tensor.t().contiguous().t()
    if layout == "strided" and tensor.dim():
        wide = torch.zeros((*tensor.shape, 2), dtype=torch.uint8).to(tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    return tensor.clone()


def reduced(op, tensors):
    """A plain reference, in the order of the ranks."""
    first = tensors[0]
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(
        first.dtype, torch.int64 if first.dtype in UNSIGNED else first.dtype
    )
    tensors = [t.to(wide) for t in tensors]
    if first.dtype is torch.bool:
        two = torch.logical_and if op in (PRODUCT, MIN, BITWISE[0]) else torch.logical_or
        two = torch.logical_xor if op == BITWISE[2] else two
        return functools.reduce(two, tensors)
    two = {
        SUM: torch.add,
        AVG: torch.add,
        MIN: torch.minimum,
        MAX: torch.maximum,
        PRODUCT: torch.mul,
        BITWISE[0]: torch.bitwise_and,
        BITWISE[1]: torch.bitwise_or,
        BITWISE[2]: torch.bitwise_xor,
    }[op]
    total = functools.reduce(two, tensors)
    if op == AVG:
        whole = first.dtype in INTEGERS
        total = (
            torch.div(total, len(tensors), rounding_mode="trunc")
            if whole
            else total * (1 / len(tensors))
        )
    return total.to(first.dtype)


def same(got, wanted):
    """Equal, with a rounding of the type for averages."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got, wanted)
    if got.dtype.itemsize == 1 and got.dtype.is_floating_point:
        got, wanted = got.to(torch.float32), wanted.to(torch.float32)
    if got.dtype in UNSIGNED:
        got, wanted = got.to(torch.int64), wanted.to(torch.int64)
    if got.is_floating_point() or got.is_complex():
        torch.testing.assert_close(
            got, wanted, rtol=1e-6 if got.element_size() > 2 else 1e-2, atol=0
        )
    else:
        assert torch.equal(got, wanted), (got, wanted)
