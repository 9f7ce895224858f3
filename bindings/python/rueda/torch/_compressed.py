"""Allreduce of what tensors travel as, under compressors of Horovod's kind and of rueda's own."""

import torch

from rueda import _replay
from rueda._collectives import reduce_op
from rueda._compression import compressed, compressed_group, refuse_out
from rueda.torch._tensors import blocking
from rueda.torch._compress_reducer import reducer_for_call
from rueda.torch._outside import outside_graphs
from rueda.torch._selections import backward_name


def compressed_allreduce(allreduce, compression, tensor, out, **arguments):
    """``allreduce`` (without compression) of one tensor."""
    reducer = reducer_for_call(compression)
    if reducer is None:
        return compressed(allreduce, compression, tensor, out, **arguments)
    refuse_out(out)
    return _reduced(reducer, [tensor], **arguments)[0]


def grouped_compressed_allreduce(allreduce, compression, tensors, **arguments):
    """``allreduce`` (grouped, without compression) of several tensors."""
    reducer = reducer_for_call(compression)
    if reducer is None:
        return compressed_group(allreduce, compression, tensors, **arguments)
    return _reduced(reducer, list(tensors), **arguments)


@outside_graphs
def _reduced(reducer, tensors, average, name, op, prescale_factor, postscale_factor, process_set):
    op = reduce_op(op, average)
    arguments = op, prescale_factor, postscale_factor, process_set
    return _Reduced.apply(reducer, name, *arguments, *tensors)


class _Reduced(torch.autograd.Function):
    """Of several tensors by a `Reducer`; the gradients are reduced without compression."""

    @staticmethod
    def forward(ctx, reducer, name, op, prescale, postscale, process_set, *tensors):
        arguments = op, prescale, postscale, process_set
        ctx.arguments = None, backward_name(name), *arguments
        count = len(tensors)
        names = [name] if count == 1 else [f"{name}_{i + 1}of{count}" for i in range(count)]

        def reduce():
            chains = [
                reducer.start(tensor, each if name else None, *arguments)
                for tensor, each in zip(tensors, names)
            ]
            return tuple(chain.wait() for chain in chains)

        return _replay.once(f"allreduce with {reducer.kind}", reduce) if _replay.entered else reduce()

    @staticmethod
    def backward(ctx, *grads):
        reduced = blocking.grouped_allreduce(grads, *ctx.arguments)
        return None, None, None, None, None, None, *reduced
