"""Sparse tensors: their indices and values are gathered."""

import torch

from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch._async import allgather_async, synchronize
from rueda.torch._outside import outside_graphs


# That of other ranks' tensors is as right as theirs: PyTorch 2.0 and newer would ask.
_UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}


def coo_tensor(indices, values, shape):
    return torch.sparse_coo_tensor(indices, values, shape, **_UNCHECKED)


@outside_graphs
def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Reduces a sparse COO tensor (Sum or Average) by gathering indices and values.

    Returns a function without arguments that waits and returns the result, not a handle.
    """
    if op not in (basics.Average, basics.Sum):
        raise ValueError("sparse_allreduce_async: op must be Average or Sum")
    # Gathered along dimension 0, so the indices travel as one row per value.
    indices = allgather_async(tensor._indices().t(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)

    def combine(all_indices, all_values):
        if op == basics.Average:
            all_values = all_values / process_set.size()
        return coo_tensor(all_indices.t(), all_values, tensor.shape)

    def result():
        return combine(synchronize(indices), synchronize(values))

    result.handles, result.combine = [indices, values], combine
    return result
