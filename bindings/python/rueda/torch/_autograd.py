"""The differentiable collectives: one autograd Function each, and their gradients.

A backward operation is named after its forward one, so that ranks may run backward in different
orders; unnamed ones meet in order. Gradients are Horovod's: of an allreduce the same allreduce, of
an allgather the average of the gradients for one's own rows, and so on.

`_graph` has the same functions for graphs of torch.compile, and computes gradients with the
``*_gradients`` functions here. They give those of a list of inputs, from those of the results, what
the forward kept, and its arguments.
"""

import torch

from rueda.common import basics
from rueda.torch._selections import SELECTIONS, Selection, backward_name, scaled
from rueda.torch._tensors import blocking


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, tensor):
        arguments = op, prescale, postscale, process_set
        ctx.arguments = None, backward_name(name), *arguments
        return blocking.allreduce(tensor, None, name, *arguments)

    @staticmethod
    def backward(ctx, grad):
        reduced = blocking.allreduce(grad, *ctx.arguments)
        return None, None, None, None, None, reduced


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, *tensors):
        arguments = op, prescale, postscale, process_set
        ctx.arguments = None, backward_name(name), *arguments
        return blocking.grouped_allreduce(tensors, None, name, *arguments)

    @staticmethod
    def backward(ctx, *grads):
        reduced = blocking.grouped_allreduce(grads, *ctx.arguments)
        return None, None, None, None, None, *reduced


def allreduce(tensor, name, op, prescale, postscale, process_set):
    if op in SELECTIONS:
        result = Selection.apply(name, op, process_set, False, scaled(tensor, prescale))
        return scaled(result, postscale)
    return Allreduce.apply(name, op, prescale, postscale, process_set, tensor)


def grouped_allreduce(tensors, name, op, prescale, postscale, process_set):
    if op in SELECTIONS:
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        results = Selection.apply(name, op, process_set, True, *tensors)
        return tuple(scaled(result, postscale) for result in results)
    return GroupedAllreduce.apply(name, op, prescale, postscale, process_set, *tensors)


def allgather_gradients(grads, rows, firsts, name, process_set):
    """Of inputs with so many rows, which begin in the results at ``firsts``."""
    average = None, backward_name(name), basics.Average, 1.0, 1.0, process_set
    reduced = blocking.grouped_allreduce(grads, *average)
    return tuple(grad[at : at + count] for grad, at, count in zip(reduced, firsts, rows))


class Allgather(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, process_set, grouped, *tensors):
        results, firsts = blocking.allgather_with_places(tensors, name, process_set, grouped)
        ctx.arguments = [tensor.shape[0] for tensor in tensors], firsts, name, process_set
        return results

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None, *allgather_gradients(grads, *ctx.arguments)


def allgather(tensor, name, process_set):
    return Allgather.apply(name, process_set, False, tensor)[0]


def grouped_allgather(tensors, name, process_set):
    return Allgather.apply(name, process_set, True, *tensors)


def broadcast_gradients(grads, root_rank, name, process_set):
    """The average on the root, zero elsewhere."""
    average = None, backward_name(name), basics.Average, 1.0, 1.0, process_set
    reduced = blocking.allreduce(grads[0], *average)
    return (reduced if basics.rank() == root_rank else reduced.zero_(),)


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, root_rank, name, process_set, tensor):
        ctx.arguments = root_rank, name, process_set
        return blocking.broadcast(tensor, *ctx.arguments)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None, *broadcast_gradients(grads, *ctx.arguments)


def broadcast(tensor, root_rank, name, process_set):
    return Broadcast.apply(root_rank, name, process_set, tensor)


def alltoall_gradients(grads, rows, received, name, process_set):
    """Of an input with so many rows, whose output was split as ``received``."""
    name = backward_name(name)
    sent, _ = blocking.alltoall(grads[0], received, name, process_set)
    # Rows beyond the sum of the splits went nowhere: their gradient is zero.
    unsent = rows[0] - sent.shape[0]
    if unsent:
        sent = torch.cat([sent, sent.new_zeros((unsent, *sent.shape[1:]))])
    return (sent,)


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, splits, name, process_set, tensor):
        output, received = blocking.alltoall(tensor, splits, name, process_set)
        ctx.arguments = [tensor.shape[0]], received, name, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None, *alltoall_gradients(grads, *ctx.arguments)


def alltoall(tensor, splits, name, process_set):
    return Alltoall.apply(splits, name, process_set, tensor)


def reducescatter_gradients(grads, rows, name, process_set, op, prescale, postscale):
    """Of the inputs, from the gradients of this rank's rows of the result."""
    factor = prescale * postscale * (process_set.size() if op == basics.Sum else 1)
    name = backward_name(name)
    gathered = blocking.grouped_allgather(grads, name, process_set)
    return gathered if factor == 1.0 else tuple(grad * factor for grad in gathered)


class Reducescatter(torch.autograd.Function):
    """Of one tensor or, with ``grouped``, several."""

    @staticmethod
    def forward(ctx, name, op, process_set, prescale, postscale, grouped, *tensors):
        ctx.arguments = None, name, process_set, op, prescale, postscale
        arguments = name, op, process_set, prescale, postscale
        if grouped:
            return blocking.grouped_reducescatter(tensors, *arguments)
        return blocking.reducescatter(tensors[0], *arguments)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, None, None, None, None, *reducescatter_gradients(grads, *ctx.arguments)


def reducescatter(tensor, name, op, process_set, prescale, postscale):
    return Reducescatter.apply(name, op, process_set, prescale, postscale, False, tensor)


def grouped_reducescatter(tensors, name, op, process_set, prescale, postscale):
    return Reducescatter.apply(name, op, process_set, prescale, postscale, True, *tensors)
