"""Allreduce with Min, Max and Product where a gradient is wanted.

The gradient of the sum of all ranks' losses. Min and Max pass it on to the ranks that have the
extreme value, in equal parts (as ``torch.amax`` does); Product multiplies it by the other ranks'
values, which are gathered for that, so that zeros need no special case.
"""

import torch

from rueda.common import basics
from rueda.torch import _async

SELECTIONS = (basics.Min, basics.Max, basics.Product)


class Selection(torch.autograd.Function):
    """Of one or more tensors; with ``grouped`` as one operation."""

    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, grouped, *tensors):
        inputs = [t.detach() if prescale == 1.0 else t.detach() * prescale for t in tensors]
        if grouped:
            handle = _async.grouped_allreduce_async(
                inputs, name=name, op=op, process_set=process_set
            )
            results = _async.synchronize(handle)
        else:
            handle = _async.allreduce_async(inputs[0], name=name, op=op, process_set=process_set)
            results = (_async.synchronize(handle),)
        ctx.save_for_backward(*inputs, *(() if op == basics.Product else results))
        ctx.op, ctx.name, ctx.process_set = op, name, process_set
        ctx.factor, ctx.count = prescale * postscale, len(tensors)
        outputs = tuple(r.clone() if postscale == 1.0 else r * postscale for r in results)
        return outputs if grouped else outputs[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        inputs, results = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        name = None if ctx.name is None else f"{ctx.name}.backward"
        if ctx.op == basics.Product:
            sums = _add(grads, name, ctx.process_set)
            others = _products_of_others(inputs, name, ctx.process_set)
            own = [total * other.to(total.dtype) for total, other in zip(sums, others)]
        else:
            chosen = [x == result for x, result in zip(inputs, results)]
            marks = [mask.to(grad.dtype) for mask, grad in zip(chosen, grads)]
            sums = _add([*grads, *marks], name, ctx.process_set)
            own = [
                torch.where(mask, total / ties, torch.zeros_like(total))
                for mask, total, ties in zip(chosen, sums, sums[ctx.count :])
            ]
        if ctx.factor != 1.0:
            own = [grad * ctx.factor for grad in own]
        return (None, None, None, None, None, None, *own)


def _add(tensors, name, process_set):
    return _async.synchronize(
        _async.grouped_allreduce_async(
            tensors, name=name, op=basics.Sum, process_set=process_set
        )
    )


def _products_of_others(tensors, name, process_set):
    rows = [tensor[None] for tensor in tensors]
    name = None if name is None else f"{name}.values"
    gathered = _async.synchronize(_async.grouped_allgather_async(rows, name, process_set))
    products = []
    for values in gathered:
        values[process_set.rank()] = 1
        wide = torch.float64 if values.dtype == torch.float64 else torch.float32
        products.append(values.prod(0, dtype=wide))
    return products
