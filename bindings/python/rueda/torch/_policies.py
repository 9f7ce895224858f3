"""How the gradients of an optimizer are reduced: dense ones, compressed ones, sparse ones.

A policy knows nothing of particular parameters; what belongs to one is in its `Gradient`.
"""

from typing import Any, NamedTuple

import torch

from rueda._ffi import MAX
from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer
from rueda.torch._in_place import in_place_of
from rueda.torch._reduction import ChainReduction, Reduction
from rueda.torch._sparse import coo_tensor, sparse_allreduce_async
from rueda.torch.compression import Compression


class Settings(NamedTuple):
    """What an optimizer was made with."""

    op: int
    prescale: float
    postscale: float
    process_set: Any
    compression: Any
    prefix: str  # of the names of its operations


class Policy:
    def __init__(self, settings):
        self.settings = settings

    def start(self, gradients, name):
        """Starts the reduction of complete gradients; returns it."""
        raise NotImplementedError

    def supply(self, gradient):
        """Gives a parameter that has no gradient what this rank takes part with."""
        p = gradient.parameter
        if p.grad is None:
            p.grad = torch.zeros_like(p)

    def agree(self, gradients):
        """Collective, before a step's missing gradients are supplied: what `supply` must know."""

    def adopt(self, gradients):
        """These are the optimizer's from now on, in the order of their parameters."""


class Dense(Policy):
    """One allreduce, alone or of a group; cast by a compressor of Horovod's kind."""

    def start(self, gradients, name):
        settings = self.settings
        first, alone = gradients[0], len(gradients) == 1
        plain = alone and settings.compression is Compression.none
        if plain and first.in_place is not None and first.in_place.start(first.parameter):
            return first.in_place
        name = settings.prefix + name
        wires, contexts = [], []
        for gradient in gradients:
            if gradient.buffer is not None:
                gradient.buffer.bring(gradient.parameter)
            wire, context = settings.compression.compress(dense(gradient.parameter.grad))
            wires.append(wire.contiguous())
            contexts.append(context)
        arguments = None, name, settings.op, *settings[1:4]
        if alone:
            handle = _async.allreduce_async_(wires[0], *arguments)
        else:
            handle = _async.grouped_allreduce_async_(wires, *arguments)
        if plain and not first.parameter.is_complex():  # which may be lazily conjugated
            first.in_place = in_place_of(first, name, settings)

        def write(_):
            for gradient, wire, context in zip(gradients, wires, contexts):
                write_gradient(gradient.parameter, settings.compression.decompress(wire, context))

        return Reduction(gradients, [handle], write)


class Compressed(Policy):
    """By a compression that carries out the whole reduction (`_compress_reducer`)."""

    def start(self, gradients, name):
        (gradient,) = gradients
        op, prescale, postscale, process_set, reducer, prefix = self.settings
        chain = reducer.start(
            dense(gradient.parameter.grad), prefix + name, op, prescale, postscale, process_set
        )
        return ChainReduction(
            gradients, chain, lambda result: write_gradient(gradient.parameter, result)
        )


class Sparse(Policy):
    """Indices and values are gathered."""

    def start(self, gradients, name):
        (gradient,) = gradients
        op, process_set = self.settings.op, self.settings.process_set
        grad = gradient.parameter.grad.detach()
        name = self.settings.prefix + name
        result = sparse_allreduce_async(grad, name, op, process_set)

        def write(indices, values):
            gradient.parameter.grad = result.combine(indices, values)

        return Reduction(gradients, result.handles, write)

    def supply(self, gradient):
        """One without values, as an embedding of that weight would give it."""
        p = gradient.parameter
        if p.grad is None:
            indices = p.new_zeros((1, 0), dtype=torch.int64)
            values = p.new_zeros((0, *p.shape[1:]))
            p.grad = coo_tensor(indices, values, p.shape)


class DenseOrSparse(Policy):
    """Each as it comes.

    A dense gradient travels in one allreduce, a sparse one in two allgathers. A rank whose backward
    pass did not reach an embedding cannot see which it would have had, so the ranks tell each other
    once, for the parameters for which any rank has a gradient. Parameters that nobody had used by then
    are asked for again in every step until somebody does.
    """

    def __init__(self, of_dense):
        super().__init__(of_dense.settings)
        self._dense, self._sparse = of_dense, Sparse(of_dense.settings)

    def start(self, gradients, name):
        is_sparse = gradients[0].parameter.grad.is_sparse
        return (self._sparse if is_sparse else self._dense).start(gradients, name)

    def supply(self, gradient):
        (self._sparse if gradient.is_sparse else self._dense).supply(gradient)

    def agree(self, gradients):
        """ValueError names a parameter whose gradient is sparse on one rank and dense on another."""
        unknown = [g for g in gradients if g.group is None and g.is_sparse is None]
        if not unknown:
            return
        grads = [gradient.parameter.grad for gradient in unknown]
        has = [
            [grad is not None and grad.is_sparse == sparse for grad in grads]
            for sparse in (True, False)
        ]
        handle = _async.allreduce_async_(
            torch.tensor(has, dtype=torch.uint8),
            name=self.settings.prefix + "optimizer.layouts",
            op=MAX,
            process_set=self.settings.process_set,
        )
        are_sparse, are_dense = _async.synchronize(handle).tolist()
        for gradient, sparse, dense_too in zip(unknown, are_sparse, are_dense):
            if sparse and dense_too:
                raise ValueError(
                    f"the gradient of {gradient.name} is sparse on one rank and dense on another; "
                    "use DistributedOptimizer(sparse_as_dense=True)"
                )
            if sparse or dense_too:
                gradient.is_sparse = bool(sparse)


def policy_for(settings, sparse_as_dense):
    """Of gradients that are reduced alone."""
    kind = Compressed if isinstance(settings.compression, Reducer) else Dense
    return kind(settings) if sparse_as_dense else DenseOrSparse(kind(settings))


def dense(grad):
    grad = grad.detach()
    return (grad.to_dense() if grad.is_sparse else grad).resolve_conj()


def write_gradient(p, result):
    """Puts a dense result into ``p.grad``, in the form that this has."""
    if p.grad.is_sparse:
        p.grad = result.to_sparse(p.grad.sparse_dim())
    elif result.data_ptr() != p.grad.data_ptr():
        with torch.no_grad():
            p.grad.copy_(result)
