"""Which gradients are sparse: what a rank needs to know to take part without having a gradient.

A dense gradient travels in one allreduce, a sparse one in two allgathers. A rank whose backward
pass did not reach an embedding cannot see which it would have had, so the ranks tell each other
once, for the parameters for which any rank has a gradient. Parameters that nobody had used by then
are asked for again in every step until somebody does.
"""

import torch

from rueda._ffi import MAX
from rueda.torch import _async


class Layouts:
    """What is known about the parameters of one optimizer; the same on all ranks."""

    def __init__(self):
        self._is_sparse = {}  # parameter: True or False; absent while unknown

    def __len__(self):
        """Of how many parameters it is known."""
        return len(self._is_sparse)

    def is_sparse(self, p):
        return self._is_sparse.get(p, False)

    def agree(self, parameters, names, prefix, process_set):
        """All ranks call it with the same parameters, in the same order.

        ValueError names a parameter whose gradient is sparse on one rank and dense on another.
        """
        unknown = [p for p in parameters if p not in self._is_sparse]
        has = [
            [p.grad is not None and p.grad.is_sparse == sparse for p in unknown]
            for sparse in (True, False)
        ]
        handle = _async.allreduce_async_(
            torch.tensor(has, dtype=torch.uint8),
            name=prefix + "optimizer.layouts",
            op=MAX,
            process_set=process_set,
        )
        is_sparse, is_dense = _async.synchronize(handle).tolist()
        for p, sparse, dense in zip(unknown, is_sparse, is_dense):
            if sparse and dense:
                raise ValueError(
                    f"the gradient of {names[p]} is sparse on one rank and dense on another; "
                    "use DistributedOptimizer(sparse_as_dense=True)"
                )
            if sparse or dense:
                self._is_sparse[p] = bool(sparse)


def empty_sparse_gradient(p):
    """A sparse gradient without values, as an embedding of that weight would give it."""
    indices = p.new_zeros((1, 0), dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, p.new_zeros((0,) + tuple(p.shape[1:])), p.shape)
