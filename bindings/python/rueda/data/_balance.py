"""Samples move from slow ranks to fast ones, between epochs; a step's samples stay the same, so its gradient does, too."""

import heapq
import time

from rueda._objects import allgather_object


def balance(loader, most=2.0):
    """Lets a loader deal a step's samples out by how fast ranks are, measured in the epoch before.

    >>> balance = hvd.balance(loader)
    >>> for x, y in loader:
    ...     with balance:                                    # this rank's own work, and no waiting for others
    ...         (loss_of(model(x), y) * loader.weight).backward()
    ...     optimizer.step()

    Each step has the samples that it would have had; only whose they are changes. Averages over the ranks of what is multiplied by
    ``loader.weight`` are therefore what they would have been, but for rounding. Batches are of other sizes on each rank, and in
    each epoch. All ranks call it, before their loops.

    Parameters
    ----------
    loader : DataLoader
    most : float
        A rank's batch has at most so many times ``batch_size`` samples, for its memory's sake; 1 or more.

    Returns
    -------
    Balance
        A context that measures; ``shares`` are the samples of each rank in a step.
    """
    if loader._given_place is not None:
        raise ValueError("balance: a loader with place= talks to no other ranks, who would have to change, too")
    if isinstance(most, bool) or not isinstance(most, (int, float)) or most < 1:
        raise ValueError(f"most={most!r}: expected 1 or more")
    loader._balance = Balance(loader._batch_size, most)
    return loader._balance


class Balance:
    """Measures this rank's work, and says how many samples each rank gets."""

    def __init__(self, batch_size, most, clock=time.monotonic):
        self._batch_size, self._most, self._clock = batch_size, int(most * batch_size), clock
        self._seconds, self._samples = 0.0, 0
        self._begun = None
        self.shares = []

    def __enter__(self):
        self._begun = self._clock()
        return self

    def __exit__(self, *_):
        self._seconds += self._clock() - self._begun

    def of(self, size):
        """Samples of each of so many ranks in a step: those measured, if as many ranks were."""
        if len(self.shares) != size:
            self.shares = [self._batch_size] * size
        return self.shares

    def forget(self):
        """Ranks may have come that have measured nothing."""
        self.shares = []

    def given(self, samples):
        """A batch of so many samples is given to this rank."""
        self._samples += samples

    def settle(self, process_set):
        """An epoch is over: all ranks say how fast they were."""
        mine = self._samples, self._seconds
        self._samples, self._seconds = 0, 0.0
        every = allgather_object(mine, "rueda.data.balance", process_set)
        unknown = [rank for rank, (samples, seconds) in zip(process_set.ranks, every) if not samples or seconds <= 0]
        if unknown:
            raise ValueError(f"balance: ranks {unknown} have measured nothing: put their own work of a step into `with balance:`")
        speeds = [samples / seconds for samples, seconds in every]
        self.shares = shares_for(speeds, self._batch_size * len(speeds), self._most)


def shares_for(speeds, samples, most):
    """How many of a step's samples each rank gets, so that the last one is done as early as can be: one or more, ``most`` at most.

    One after another goes to who would have done it first. The same on all ranks, which have the same numbers.
    """
    shares = [1] * len(speeds)
    next_done = [(2 / speed, rank) for rank, speed in enumerate(speeds) if most > 1]
    heapq.heapify(next_done)
    for _ in range(samples - len(speeds)):
        _, rank = heapq.heappop(next_done)
        shares[rank] += 1
        if shares[rank] < most:
            heapq.heappush(next_done, ((shares[rank] + 1) / speeds[rank], rank))
    return shares
