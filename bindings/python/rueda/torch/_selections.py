"""Allreduce with Min, Max and Product where a gradient is wanted.

The gradient of the sum of all ranks' losses. Min and Max pass it on to the ranks that have the
extreme value, in equal parts (as ``torch.amax`` does); Product multiplies it by the other ranks'
values, which are gathered for that, so that zeros need no special case.
"""

import torch

from rueda.common import basics
from rueda.torch._tensors import blocking

SELECTIONS = (basics.Min, basics.Max, basics.Product)


def backward_name(name):
    """Of the operation that computes the gradient of one of this name."""
    return None if name is None else f"{name}.backward"


class Selection(torch.autograd.Function):
    """Of one or more tensors; with ``grouped`` as one operation."""

    @staticmethod
    def forward(ctx, name, op, process_set, grouped, *tensors):
        reduce = blocking.grouped_allreduce if grouped else blocking.allreduce
        results = reduce(tensors if grouped else tensors[0], None, name, op, 1.0, 1.0, process_set)
        ctx.save_for_backward(*tensors, *(results if grouped else (results,)))
        ctx.arguments = op, name, process_set
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        count = len(grads)
        inputs, results = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        return (None, None, None, None, *gradients(grads, inputs, results, *ctx.arguments))


def gradients(grads, inputs, results, op, name, process_set):
    """Of this rank's inputs, from those of the results."""
    name = backward_name(name)
    if op == basics.Product:
        sums = _add(grads, name, process_set)
        others = _products_of_others(inputs, name, process_set)
        return [total * other.to(total.dtype) for total, other in zip(sums, others)]
    chosen = [x == result for x, result in zip(inputs, results)]
    marks = [mask.to(grad.dtype) for mask, grad in zip(chosen, grads)]
    sums = _add([*grads, *marks], name, process_set)
    return [
        torch.where(mask, total / ties, torch.zeros_like(total))
        for mask, total, ties in zip(chosen, sums, sums[len(grads) :])
    ]


def scaled(tensor, factor):
    """Outside the operation, so that a gradient passes through the factors as well."""
    return tensor if factor == 1.0 else tensor * factor


def _add(tensors, name, process_set):
    return blocking.grouped_allreduce(tensors, None, name, basics.Sum, 1.0, 1.0, process_set)


def _products_of_others(tensors, name, process_set):
    rows = [tensor[None] for tensor in tensors]
    name = None if name is None else f"{name}.values"
    gathered = blocking.grouped_allgather(rows, name, process_set)
    products = []
    for values in gathered:
        values[process_set.rank()] = 1
        wide = torch.float64 if values.dtype == torch.float64 else torch.float32
        products.append(values.prod(0, dtype=wide))
    return products
