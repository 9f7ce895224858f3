"""Whose samples are whose: an epoch's order, cut into steps, and each step among the ranks.

A step takes the next samples of the order, ``batch_size`` for each rank, and gives each rank a piece of them. So what all ranks
have had after any step is a beginning of the order, whatever their number: one integer says where an epoch is, and another
number of ranks goes on from there.

    order      0 1 2 3 4 5 6 7 8 9 ...
    step 0     |--- rank 0 ---|--- rank 1 ---|     batch_size 3: samples 0 to 5
    step 1                                   |-- ...
"""

from rueda._numpy import np

UNEVEN = ("drop", "join")


def pieces(samples, shares):
    """How many of a step's samples each rank gets, in proportion to its share of a whole step.

    What is left by rounding down goes to those who lack most, the lower ranks first.
    """
    whole = sum(shares)
    if samples == whole:
        return list(shares)
    counts = [samples * share // whole for share in shares]
    lacking = sorted(range(len(shares)), key=lambda rank: -(samples * shares[rank] % whole))
    for rank in lacking[: samples - sum(counts)]:
        counts[rank] += 1
    return counts


class Deal:
    """The rest of an epoch, for one rank.

    Parameters
    ----------
    samples, consumed : int
        Of the epoch, and how many of them all ranks together have had.
    shares : sequence of int
        Samples of each rank in a whole step.
    rank : int
    uneven : "drop" or "join"
        Of samples that do not fill a step: leave them out, or deal them out as far as they go.

    Attributes
    ----------
    steps : int
        In which any rank has samples.
    my_steps : int
        In which this rank has some: all, or all but the last.
    is_even : bool
        Whether that is so for all ranks.
    """

    def __init__(self, samples, consumed, shares, rank, uneven):
        self._samples, self._consumed, self._rank = samples, consumed, rank
        self.shares, self._step = list(shares), sum(shares)
        left = max(0, samples - consumed)
        self.steps = left // self._step if uneven == "drop" else -(-left // self._step)
        last = self.counts(self.steps - 1) if self.steps else [1]
        self.my_steps = self.steps - (self.steps > 0 and last[rank] == 0)
        self.is_even = all(last)

    def counts(self, step):
        """Samples of each rank in this step."""
        begin = self._consumed + step * self._step
        return pieces(min(self._step, self._samples - begin), self.shares)

    def positions(self, step):
        """Of this rank's samples in the order of the epoch: int64."""
        counts = self.counts(step)
        begin = self._consumed + step * self._step + sum(counts[: self._rank])
        return np.arange(begin, begin + counts[self._rank])

    def consumed_after(self, step):
        """Samples of the epoch that all ranks together have had after this step."""
        return min(self._samples, self._consumed + (step + 1) * self._step)
