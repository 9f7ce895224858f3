"""Only the largest elements travel, with their indices; the others are kept for the next step.

Every rank gathers everybody's (index, value) pairs and adds them up in rank order.

Bytes: 8 per chosen element sent, 8 (P-1) received: fewer than without compression while ratio is
below 1 / P. Source: error feedback for sparsified SGD, Stich et al., NeurIPS 2018.
"""

import math

import torch

from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer, without_error


class TopKCompressor(Reducer):
    """The ``ratio`` of elements with the largest magnitude travels, with error feedback.

    Parameters
    ----------
    ratio : float
        Between 0 and 1, for example 0.01. At least one element of each tensor travels.
    """

    kind = "topk"

    def __init__(self, ratio):
        if not 0 < ratio <= 1:
            raise ValueError(f"topk: ratio must be above 0 and at most 1, got {ratio!r}")
        super().__init__()
        self.ratio = float(ratio)

    def settings(self):
        return {"ratio": self.ratio}

    def compresses(self, shape):
        count = math.prod(shape)
        # An index has 31 bits. What costs more than the elements themselves travels as it is.
        return self._chosen(count) * 2 < count < 2**31

    def _chosen(self, count):
        return max(1, math.ceil(self.ratio * count))

    def average(self, tensor, name, memory, process_set):
        size = process_set.size()
        flat = tensor.reshape(-1)
        chosen = torch.topk(flat.abs(), self._chosen(len(flat)), sorted=False).indices
        values = flat[chosen]
        sent = torch.zeros_like(flat)
        sent[chosen] = values
        memory["error"] = without_error(flat, sent).view(tensor.shape)
        wire = torch.cat([chosen.int(), values.view(torch.int32)])
        gathered = yield _async.allgather_async(wire, name + ".pairs", process_set)

        total = torch.zeros_like(flat)
        for indices, bits in gathered.view(size, 2, -1):
            total[indices.long()] += bits.view(torch.float32)  # a rank names an index once
        return (total / size).view(tensor.shape)
