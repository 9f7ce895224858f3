"""Which part of the data a rank trains on, and for how many steps."""

import torch

from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch import _async

_UNEVEN = ("pad", "drop", "keep")


class DistributedSampler(torch.utils.data.Sampler):
    """Deals a data set out to the ranks, one sample after another, and can go on where it stopped.

    Call ``set_epoch`` before each epoch. To resume within one, call ``advance`` after each step and
    save ``state_dict()`` with the checkpoint; the number of ranks may be another then.

    Parameters
    ----------
    dataset : Sized
        Or the number of samples.
    shuffle : bool
        In a new order each epoch, the same on all ranks.
    seed : int
        Of the order; the same on all ranks.
    uneven : str
        What becomes of samples when their number cannot be divided by the ranks. "pad": some come
        twice, so that all ranks have as many. "drop": the last ones are left out. "keep": each
        comes once, and some ranks have one more: for evaluation, or with `common_steps`.
    process_set : ProcessSet
        The ranks to deal to.
    """

    def __init__(
        self, dataset, shuffle=True, seed=0, uneven="pad", process_set=global_process_set
    ):
        if uneven not in _UNEVEN:
            raise ValueError(f"uneven={uneven!r}: expected one of {', '.join(_UNEVEN)}")
        self._total = dataset if isinstance(dataset, int) else len(dataset)
        self._shuffle, self._seed, self._uneven = shuffle, seed, uneven
        self._process_set = process_set
        self.epoch = 0
        self._consumed = 0

    def set_epoch(self, epoch):
        """Begins an epoch; the same number again goes on with what is left of it."""
        if epoch != self.epoch:
            self.epoch, self._consumed = epoch, 0

    def advance(self, samples):
        """Says that every rank has trained on so many more samples."""
        self._consumed = min(self._total, self._consumed + samples * self._process_set.size())

    def state_dict(self):
        """Plain numbers: epoch, and samples consumed in it by all ranks together."""
        return {"epoch": self.epoch, "consumed": self._consumed}

    def load_state_dict(self, state):
        """Goes on where ``state_dict`` was taken, on any number of ranks."""
        self.epoch, self._consumed = state["epoch"], min(self._total, state["consumed"])

    def _place(self):
        return self._process_set.rank(), self._process_set.size()

    def __len__(self):
        """Samples of this rank that are left in this epoch."""
        rank, size = self._place()
        left = self._total - self._consumed
        if self._uneven == "keep":
            return (left + size - 1 - rank) // size
        return left // size if self._uneven == "drop" else -(-left // size)

    def __iter__(self):
        rank, size = self._place()
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._seed + self.epoch)
            order = torch.randperm(self._total, generator=generator)
        else:
            order = torch.arange(self._total)
        left = order[self._consumed :]
        count = len(self)
        if self._uneven == "pad" and len(left):
            left = left.repeat(-(-count * size // len(left)))
        return iter(left[rank::size][:count].tolist())


def common_steps(loader, process_set=global_process_set):
    """Yields from a loader as many batches as every rank has, so that no rank waits for another.

    All ranks must iterate over it. The number is agreed on once where the loader has a length,
    else before each batch; batches that are left over on some ranks are not used.
    """
    try:
        steps = len(loader)
    except TypeError:
        steps = -1
    steps = _smallest(steps, "steps", process_set)
    if steps >= 0:
        for _, batch in zip(range(steps), loader):
            yield batch
        return
    end = object()
    batches = iter(loader)
    while True:
        batch = next(batches, end)
        if not _smallest(batch is not end, "more", process_set):
            return
        yield batch


def _smallest(number, name, process_set):
    handle = _async.allreduce_async_(
        torch.tensor(number, dtype=torch.int64),
        name=f"common_steps.{name}",
        op=basics.Min,
        process_set=process_set,
    )
    return _async.synchronize(handle).item()
