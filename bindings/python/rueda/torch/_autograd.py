"""Gradients of the collectives: one autograd Function each.

A backward operation is named after its forward one, so that ranks may run backward in different
orders; unnamed ones meet in order. Gradients are Horovod's: of an allreduce the same allreduce, of
an allgather the average of the gradients for one's own rows, and so on.
"""

import torch

from rueda.common import basics
from rueda.torch import _async


def _backward(name):
    return None if name is None else f"{name}.backward"


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, tensor):
        ctx.arguments = (None, _backward(name), op, prescale, postscale, process_set)
        return _async.synchronize(
            _async.allreduce_async(tensor, None, name, op, prescale, postscale, process_set)
        )

    @staticmethod
    def backward(ctx, grad):
        reduced = _async.synchronize(_async.allreduce_async(grad, *ctx.arguments))
        return None, None, None, None, None, reduced


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, *tensors):
        ctx.arguments = (None, _backward(name), op, prescale, postscale, process_set)
        return _async.synchronize(
            _async.grouped_allreduce_async(
                tensors, None, name, op, prescale, postscale, process_set
            )
        )

    @staticmethod
    def backward(ctx, *grads):
        reduced = _async.synchronize(_async.grouped_allreduce_async(grads, *ctx.arguments))
        return (None, None, None, None, None) + reduced


def _own_rows(rows, process_set):
    """(first, last + 1) of this rank's rows in an allgather to which it gave ``rows``."""
    counts = _async.synchronize(
        _async.allgather_async(torch.tensor([rows]), None, process_set)
    ).tolist()
    first = sum(counts[: process_set.rank()])
    return first, first + rows


class Allgather(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, process_set, grouped, *tensors):
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.arguments = (None, _backward(name), basics.Average, 1.0, 1.0, process_set)
        if grouped:
            return _async.synchronize(_async.grouped_allgather_async(tensors, name, process_set))
        return _async.synchronize(_async.allgather_async(tensors[0], name, process_set))

    @staticmethod
    def backward(ctx, *grads):
        reduced = _async.synchronize(_async.grouped_allreduce_async(grads, *ctx.arguments))
        mine = [_own_rows(rows, ctx.arguments[-1]) for rows in ctx.rows]
        return (None, None, None) + tuple(
            grad[first:end] for grad, (first, end) in zip(reduced, mine)
        )


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, root_rank, name, process_set, tensor):
        ctx.root_rank = root_rank
        ctx.arguments = (None, _backward(name), basics.Average, 1.0, 1.0, process_set)
        return _async.synchronize(_async.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, grad):
        reduced = _async.synchronize(_async.allreduce_async(grad, *ctx.arguments))
        if basics.rank() != ctx.root_rank:
            reduced.zero_()
        return None, None, None, reduced


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, splits, name, process_set, tensor):
        output, received = _async.synchronize(
            _async.alltoall_async(tensor, splits, name, process_set)
        )
        ctx.rows = tensor.shape[0]
        ctx.received = received
        ctx.arguments = (_backward(name), process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, grad, _):
        sent, _ = _async.synchronize(_async.alltoall_async(grad, ctx.received, *ctx.arguments))
        # Rows beyond the sum of the splits went nowhere: their gradient is zero.
        unsent = ctx.rows - sent.shape[0]
        if unsent:
            sent = torch.cat([sent, sent.new_zeros((unsent,) + tuple(sent.shape[1:]))])
        return None, None, None, sent


class Reducescatter(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, op, process_set, prescale, postscale, grouped, *tensors):
        factor = prescale * postscale
        ctx.factor = factor * process_set.size() if op == basics.Sum else factor
        ctx.arguments = (_backward(name), process_set)
        arguments = (name, op, process_set, prescale, postscale)
        if grouped:
            return _async.synchronize(_async.grouped_reducescatter_async(tensors, *arguments))
        return _async.synchronize(_async.reducescatter_async(tensors[0], *arguments))

    @staticmethod
    def backward(ctx, *grads):
        gathered = _async.synchronize(_async.grouped_allgather_async(grads, *ctx.arguments))
        if ctx.factor != 1.0:
            gathered = tuple(grad * ctx.factor for grad in gathered)
        return (None, None, None, None, None, None) + gathered
