"""The differentiable collectives: one autograd Function each, and their gradients.

A backward operation is named after its forward one, so that ranks may run backward in different
orders; unnamed ones meet in order. Gradients are Horovod's: of an allreduce the same allreduce, of
an allgather the average of the gradients for one's own rows, and so on.

`_graph` has the same functions for graphs of torch.compile, and computes gradients with the
``*_gradient`` functions here.
"""

import torch

from rueda.common import basics
from rueda.torch import _async
from rueda.torch._outside import outside_graphs
from rueda.torch._selections import SELECTIONS, Selection, scaled


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, tensor):
        ctx.arguments = (None, _async.backward_name(name), op, prescale, postscale, process_set)
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
        ctx.arguments = (None, _async.backward_name(name), op, prescale, postscale, process_set)
        return _async.synchronize(
            _async.grouped_allreduce_async(
                tensors, None, name, op, prescale, postscale, process_set
            )
        )

    @staticmethod
    def backward(ctx, *grads):
        reduced = _async.synchronize(_async.grouped_allreduce_async(grads, *ctx.arguments))
        return (None, None, None, None, None) + reduced


class CompressedAllreduce(GroupedAllreduce):
    """Of several tensors by a `Reducer`; the gradients are reduced without compression."""

    @staticmethod
    def forward(ctx, reducer, name, op, prescale, postscale, process_set, *tensors):
        arguments = op, prescale, postscale, process_set
        ctx.arguments = (None, _async.backward_name(name), *arguments)
        count = len(tensors)
        names = [name] if count == 1 else [f"{name}_{i + 1}of{count}" for i in range(count)]
        chains = [
            reducer.start(tensor, each if name else None, *arguments)
            for tensor, each in zip(tensors, names)
        ]
        return tuple(chain.wait() for chain in chains)

    @staticmethod
    def backward(ctx, *grads):
        return (None,) + GroupedAllreduce.backward(ctx, *grads)


def _own_rows(rows, process_set):
    """(first, last + 1) of this rank's rows in an allgather to which it gave ``rows``."""
    counts = _async.synchronize(
        _async.allgather_async(torch.tensor([rows]), None, process_set)
    ).tolist()
    first = sum(counts[: process_set.rank()])
    return first, first + rows


def allgather_gradients(grads, rows, name, process_set):
    """Of inputs with so many rows each, from the gradients of what was gathered."""
    average = (None, _async.backward_name(name), basics.Average, 1.0, 1.0, process_set)
    reduced = _async.synchronize(_async.grouped_allreduce_async(grads, *average))
    mine = [_own_rows(count, process_set) for count in rows]
    return tuple(grad[first:end] for grad, (first, end) in zip(reduced, mine))


class Allgather(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, process_set, grouped, *tensors):
        rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.arguments = (rows, name, process_set)
        if grouped:
            return _async.synchronize(_async.grouped_allgather_async(tensors, name, process_set))
        return _async.synchronize(_async.allgather_async(tensors[0], name, process_set))

    @staticmethod
    def backward(ctx, *grads):
        return (None, None, None) + allgather_gradients(grads, *ctx.arguments)


def broadcast_gradient(grad, root_rank, name, process_set):
    """The average on the root, zero elsewhere."""
    average = (None, _async.backward_name(name), basics.Average, 1.0, 1.0, process_set)
    reduced = _async.synchronize(_async.allreduce_async(grad, *average))
    if basics.rank() != root_rank:
        reduced.zero_()
    return reduced


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, root_rank, name, process_set, tensor):
        ctx.arguments = (root_rank, name, process_set)
        return _async.synchronize(_async.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, broadcast_gradient(grad, *ctx.arguments)


def alltoall_gradient(grad, received, rows, name, process_set):
    """Of an input with so many rows, from the gradient of its output and how it was split."""
    sent, _ = _async.synchronize(
        _async.alltoall_async(grad, received, _async.backward_name(name), process_set)
    )
    # Rows beyond the sum of the splits went nowhere: their gradient is zero.
    unsent = rows - sent.shape[0]
    if unsent:
        sent = torch.cat([sent, sent.new_zeros((unsent,) + tuple(sent.shape[1:]))])
    return sent


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, splits, name, process_set, tensor):
        output, received = _async.synchronize(
            _async.alltoall_async(tensor, splits, name, process_set)
        )
        ctx.arguments = (received, tensor.shape[0], name, process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, grad, _):
        return None, None, None, alltoall_gradient(grad, *ctx.arguments)


def reducescatter_gradients(grads, op, prescale, postscale, name, process_set):
    """Of the inputs, from the gradients of this rank's rows of the result."""
    factor = prescale * postscale
    if op == basics.Sum:
        factor *= process_set.size()
    gathered = _async.synchronize(
        _async.grouped_allgather_async(grads, _async.backward_name(name), process_set)
    )
    return gathered if factor == 1.0 else tuple(grad * factor for grad in gathered)


class Reducescatter(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, op, process_set, prescale, postscale, grouped, *tensors):
        ctx.arguments = (op, prescale, postscale, name, process_set)
        arguments = (name, op, process_set, prescale, postscale)
        if grouped:
            return _async.synchronize(_async.grouped_reducescatter_async(tensors, *arguments))
        return _async.synchronize(_async.reducescatter_async(tensors[0], *arguments))

    @staticmethod
    def backward(ctx, *grads):
        gathered = reducescatter_gradients(grads, *ctx.arguments)
        return (None, None, None, None, None, None) + gathered


# What the public functions call; a graph has its own (`_graph`), except for compression.


def allreduce(tensor, name, op, prescale, postscale, process_set):
    if op in SELECTIONS and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
        result = Selection.apply(name, op, process_set, False, scaled(tensor, prescale))
        return scaled(result, postscale)
    return Allreduce.apply(name, op, prescale, postscale, process_set, tensor)


def grouped_allreduce(tensors, name, op, prescale, postscale, process_set):
    if op in SELECTIONS and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        results = Selection.apply(name, op, process_set, True, *tensors)
        return tuple(scaled(result, postscale) for result in results)
    return GroupedAllreduce.apply(name, op, prescale, postscale, process_set, *tensors)


@outside_graphs
def compressed_allreduce(reducer, tensors, name, op, prescale, postscale, process_set):
    arguments = name, op, prescale, postscale, process_set
    return CompressedAllreduce.apply(reducer, *arguments, *tensors)


def allgather(tensor, name, process_set):
    return Allgather.apply(name, process_set, False, tensor)


def grouped_allgather(tensors, name, process_set):
    return Allgather.apply(name, process_set, True, *tensors)


def broadcast(tensor, root_rank, name, process_set):
    return Broadcast.apply(root_rank, name, process_set, tensor)


def alltoall(tensor, splits, name, process_set):
    return Alltoall.apply(splits, name, process_set, tensor)


def reducescatter(tensor, name, op, process_set, prescale, postscale):
    return Reducescatter.apply(name, op, process_set, prescale, postscale, False, tensor)


def grouped_reducescatter(tensors, name, op, process_set, prescale, postscale):
    return Reducescatter.apply(name, op, process_set, prescale, postscale, True, *tensors)
