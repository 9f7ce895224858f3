"""The collectives of a sharded optimizer: an ordered group of its ranks, in which nothing is negotiated."""

import math

import torch

from rueda import _ffi
from rueda._ordered_groups import NOTHING, Description, Group
from rueda._runtime import runtime
from rueda.common import basics
from rueda.torch._tensors import _DTYPES

_SECONDS = 1e9  # a wait ends with the group, or with the verdict on a rank


def ranks_of(process_set):
    """Those that work together; who is no member uses its own gradients."""
    return process_set.ranks if process_set.included() else [basics.rank()]


class Wire:
    """Of one rank. Batches are handed to it in the same order on all ranks.

    Parameters
    ----------
    ranks : list of int
        The members, in the order of their shares and of sums.
    op : int
        Average or Sum.
    predivide : float
    """

    def __init__(self, ranks, op=basics.Sum, predivide=1.0):
        self.size, self.ranks, self.rank = len(ranks), ranks, ranks.index(basics.rank())
        averages = op == basics.Average
        if predivide == 1.0:
            self._op, self._before, self._after = (_ffi.AVERAGE if averages else _ffi.SUM), 1.0, 1.0
        else:
            self._op, self._before, self._after = _ffi.SUM, 1.0 / predivide, predivide / self.size
        self._group = None
        if self.size > 1:
            self._group = Group("sharded optimizer", ranks)

    def reduce(self, gradients, target, inner=()):
        """Starts: ``target``, a rank's share, gets what is to be applied of the sum of all ranks' ``gradients``.

        ``inner``: extents of a row, which all ranks must say alike.
        """
        if self._group is None:
            return Local(gradients, target)
        share = target.numel()
        form = Description(
            _ffi.REDUCESCATTER,
            _DTYPES[gradients.dtype],
            rows_of(gradients, inner),
            self._op,
            output_splits=(share // math.prod(inner),) * self.size,
            prescale=self._before,
        )
        return Started(self._group, form, gradients, target, self._after)

    def gather(self, values, own, inner=()):
        """Starts: every rank's ``values`` get each rank's ``own`` share; may lie in them."""
        if self._group is None:
            return Local(own, values)
        form = Description(
            _ffi.ALLGATHER,
            _DTYPES[values.dtype],
            rows_of(own, inner),
            output_splits=(own.numel() // math.prod(inner),) * self.size,
            rows=values.numel() // math.prod(inner),
        )
        return Started(self._group, form, own, values)

    def combine(self, value, op):
        """A number of every rank as one, on all of them."""
        if self._group is None:
            return value
        number = torch.tensor([value], dtype=torch.float64)
        form = Description(_ffi.ALLREDUCE, _ffi.FLOAT64, 1, op)
        place = number.data_ptr()
        self._group.run(form, place, place, number, _SECONDS)
        return number.item()

    def from_first(self, number):
        """The first rank's."""
        return self.broadcast(torch.tensor([number], dtype=torch.int64)).item()

    def broadcast(self, values):
        """The first member's ``values``, in place, which it returns."""
        if self._group is not None and values.numel():
            form = Description(_ffi.BROADCAST, _DTYPES[values.dtype], values.numel(), root=self.ranks[0])
            place = values.data_ptr()
            self._group.run(form, place, place, values, _SECONDS)
        return values

    def all_of(self, number):
        """Every member's, in their order."""
        if self._group is None:
            return [number]
        all_numbers, own = torch.empty(self.size, dtype=torch.int64), torch.tensor([number], dtype=torch.int64)
        self.gather(all_numbers, own).wait()
        return all_numbers.tolist()

    def barrier(self):
        if self._group is not None:
            self._group.run(Description(_ffi.BARRIER), NOTHING, NOTHING, None, _SECONDS)

    def close(self):
        if self._group is not None:
            self._group.close()


def rows_of(values, inner):
    """Their count, or their shape of rows."""
    return (values.numel() // math.prod(inner), *inner) if inner else values.numel()


class Started:
    """A collective under way. Keeps its memory."""

    def __init__(self, group, form, source, target, factor=1.0):
        self._request, self._keep = None, (source, target)
        self._group, self._form, self._factor = group, form, factor
        self._request = group.start(form, source.data_ptr(), target.data_ptr(), self._keep)

    def has_ended(self):
        """Whether `wait` would return at once."""
        return self._request.test()

    def wait(self):
        """The target."""
        request, self._request = self._request, None
        try:
            request.wait(_SECONDS)
        except BaseException:
            runtime.hold((request,), self._keep)
            raise
        self._group.put_back(self._form, request)
        if self._factor != 1.0:
            self._keep[1].mul_(self._factor)
        return self._keep[1]

    def __del__(self):
        if self._request is not None:
            runtime.hold((self._request,), self._keep)


class Local:
    """The same for a rank alone."""

    def __init__(self, source, target):
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
        self._target = target

    def has_ended(self):
        return True

    def wait(self):
        return self._target
