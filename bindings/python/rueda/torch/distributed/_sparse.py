"""The sum of sparse COO tensors: their entries are gathered and added where places are equal."""

import torch
from torch.distributed.distributed_c10d import AllgatherOptions

from rueda import _ffi
from rueda.torch.distributed._options import is_asynchronous
from rueda.torch.distributed._reductions import LINEAR, code_of
from rueda.torch.distributed._work import Work


def allreduce(group, tensor, opts):
    code, factor = code_of(opts.reduceOp, "allreduce")
    if code not in LINEAR:
        raise ValueError("allreduce: sparse tensors are summed or averaged, nothing else")
    mine = tensor.detach().coalesce()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    if code == _ffi.AVERAGE:
        values = values / group._size
    elif not (type(factor) is float and factor == 1.0):
        values = values * factor
    counts = values.new_zeros(group._size, dtype=torch.int64)
    plain = AllgatherOptions()
    group.all_gather_single(counts, counts.new_full((1,), values.size(0)), plain).wait()
    places = [indices.new_empty((n, indices.size(1))) for n in counts.tolist()]
    entries = [values.new_empty((n, *values.shape[1:])) for n in counts.tolist()]
    first = group.allgather([places], [indices], plain)
    second = group.allgather([entries], [values], plain)

    def finish(_):
        tensor.copy_(
            torch.sparse_coo_tensor(
                torch.cat(places).t(), torch.cat(entries), tensor.shape
            ).coalesce()
        )

    work = _After(group, (first, second), [tensor], finish)
    if is_asynchronous(opts):
        return work
    work.wait()
    return group._ended


class _After(Work):
    """What comes behind several works."""

    def __init__(self, group, works, result, finish):
        requests = tuple(request for work in works for request in work._requests)
        super().__init__(
            group,
            "allreduce",
            requests,
            None,
            works,
            result,
            self._finish_all,
            group._seconds,
            works[0]._device,
        )
        self._works, self._last = works, finish

    def _finish_all(self, _):
        for work in self._works:
            work.wait()
        self._last(self)
