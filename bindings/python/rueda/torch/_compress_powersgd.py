"""A matrix travels as a product of two thin ones, found by one step of power iteration.

M is this rank's gradient as rows x columns, plus what was left out; Q is remembered:

    P = mean over ranks of M Q          (allreduce)   columns of P made orthonormal
    Q = mean over ranks of M^T P        (allreduce)   result P Q^T, left out: M - P Q^T

Bytes: rank * (rows + columns) elements in place of rows * columns.
Bits: P and Q are the same on all ranks, and everything made of them here adds in an order that does
not depend on the processor, so the result is, too.
Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019.
"""

import zlib

import torch

from rueda._numbers import whole_number
from rueda.common import basics
from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer, without_error

# A column of P of which less than this is left beside the columns before it has no direction.
_NEGLIGIBLE = 1e-6


class PowerSGDCompressor(Reducer):
    """Matrices of rank ``rank`` travel, with error feedback and warm start.

    A tensor of n dimensions is a matrix of its first against its others; vectors travel as they
    are.

    Parameters
    ----------
    rank : int
        1 or more; 1 to 4 is usual.
    """

    kind = "powersgd"
    shared = ("q",)

    def __init__(self, rank=1):
        super().__init__()
        self.rank = whole_number("powersgd: rank", rank, 1)

    def settings(self):
        return {"rank": self.rank}

    def compresses(self, shape):
        if len(shape) < 2:
            return False
        rows, columns = shape[0], shape.numel() // shape[0]
        return 2 * self.rank * (rows + columns) <= rows * columns

    def average(self, tensor, name, memory, process_set):
        matrix = tensor.reshape(tensor.shape[0], -1)
        fresh = _random(name, matrix.shape[1], self.rank).to(matrix.device)
        q = memory.get("q", fresh)
        # A direction that was lost, to zeros or to an overflow, is drawn again.
        q = torch.where(torch.isfinite(q).all(0) & (q != 0).any(0), q, fresh)

        def mean(part, of):
            arguments = None, f"{name}.{of}", basics.Average, 1.0, 1.0, process_set
            return _async.allreduce_async_(part, *arguments)

        p = yield mean(matrix @ q, "p")
        p = _orthonormal(p)
        q = yield mean(matrix.t() @ p, "q")
        result = _product(p, q)
        memory["error"], memory["q"] = without_error(matrix, result).view(tensor.shape), q
        return result.view(tensor.shape)


def _random(name, rows, columns):
    """The same on all ranks and in every run; uniform, because that is plain arithmetic."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.rand(rows, columns, generator=generator) - 0.5


def _sum(rows):
    """Over the first dimension, adding halves."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = torch.cat([rows[:half] + rows[half : 2 * half], rows[2 * half :]])
    return rows[0]


def _orthonormal(p):
    """Gram-Schmidt, column by column; a column without a direction of its own becomes zero."""
    done = []
    for column in p.double().t():
        norm = _sum(column * column).sqrt()
        for other in done:
            column = column - other * _sum(column * other)
        rest = _sum(column * column).sqrt()
        keep = rest > _NEGLIGIBLE * norm
        done.append(torch.where(keep, column / rest, torch.zeros_like(column)))
        if not torch.isfinite(rest):  # shows in the result; not hidden as zero
            done[-1] = torch.full_like(column, float("nan"))
    return torch.stack(done, 1).float()


def _product(p, q):
    """p @ q.t(), one outer product after another."""
    result = p[:, :1] * q[:, 0]
    for k in range(1, p.shape[1]):
        result = result + p[:, k : k + 1] * q[:, k]
    return result
