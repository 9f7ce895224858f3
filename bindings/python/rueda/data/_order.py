"""In which order the samples of an epoch come: a function of the seed and the epoch, computed where it is asked for.

A permutation of n samples is n numbers in memory if it is drawn, and has to be drawn from the beginning. This one is a Feistel
network: a sample's number is cut in two digits, and in each round one of them is moved by an amount that the other one decides,
which can be undone, so that no two numbers become one. Where there are fewer samples than pairs of digits, numbers that fall
outside go round again until they are inside ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
The amounts are the mixing function of SplitMix64 (Steele, Lea and Flood, 2014). All is arithmetic on 64 bits that is written
here, so the order is the same with every NumPy, today's and tomorrow's.

Cost: about 0.2 µs for a sample; no memory.
"""

import math

from rueda._numpy import np

_ROUNDS = 8
_LEAST = 8  # values of a digit: with fewer, not every order of a few samples could come
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(x):
    """SplitMix64's mixing of 64 bits: of an integer, or of each in a uint64 array, which wraps around."""
    if isinstance(x, int):
        x = (x + _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return x ^ (x >> 31)
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key(*numbers):
    """64 bits that depend on all of these integers and on their order."""
    key = 0
    for number in numbers:
        key = _mixed(key ^ _mixed(number & _MASK))
    return key


class Permutation:
    """Of the numbers below ``count``, chosen by integers such as a seed and an epoch.

    >>> Permutation(5, 7, 0)(np.arange(5))    # the five numbers, each once
    """

    def __init__(self, count, *seeds):
        self._count = count
        self._low = max(_LEAST, math.isqrt(count))
        self._high = max(_LEAST, -(-count // self._low))
        self._keys = [_key(*seeds, each) for each in range(_ROUNDS)]

    def __call__(self, positions):
        """The numbers at these positions, which are an array of one dimension: int64."""
        numbers = np.asarray(positions, np.int64).astype(np.uint64)
        numbers = self._once(numbers)
        outside = numbers >= self._count
        while outside.any():
            numbers[outside] = self._once(numbers[outside])
            outside = numbers >= self._count
        return numbers.astype(np.int64)

    def _once(self, numbers):
        low, high = np.uint64(self._low), np.uint64(self._high)
        left, right = numbers // low, numbers % low
        for round_, key in enumerate(self._keys):
            if round_ % 2:
                right = (right + _mixed(left ^ np.uint64(key)) % low) % low
            else:
                left = (left + _mixed(right ^ np.uint64(key)) % high) % high
        return left * low + right


def order_text(shuffle, blocks, window):
    """Which kind of order it is, as text: where it differs, the same seed and epoch have another order."""
    if not shuffle:
        return "as it comes"
    return "shuffled" if blocks is None else f"shuffled in {len(blocks)} blocks, {window} at a time ({_key(*blocks):016x})"


class Order:
    """The samples of one epoch, by position.

    Parameters
    ----------
    samples : int
    shuffle : bool
        False: in the order of the source, in every epoch.
    seed, epoch : int
    blocks : sequence of int, optional
        Lengths of runs of samples that are cheap to read together, as the row groups of a file. Blocks are shuffled, and samples
        within ``window`` blocks that follow each other then, so that a reader needs few of them at a time.
    window : int
    """

    def __init__(self, samples, shuffle, seed, epoch, blocks=None, window=1):
        self._is_blocked = False
        if not shuffle:
            self._permutation = None
        elif blocks is None or len(blocks) <= window:
            self._permutation = Permutation(samples, seed, epoch)
        else:
            self._is_blocked = True
            self._lay_out(np.asarray(blocks, np.int64), seed, epoch, window)

    def _lay_out(self, blocks, seed, epoch, window):
        """Blocks in their order, and where windows of them begin."""
        chosen = Permutation(len(blocks), seed, epoch, -1)(np.arange(len(blocks)))
        self._begins = (np.cumsum(blocks) - blocks)[chosen]  # of each block, in the source
        self._block_ends = np.cumsum(blocks[chosen])  # in the order of blocks
        self._lengths = blocks[chosen]
        last = np.arange(window, len(blocks) + window, window) - 1
        self._window_ends = self._block_ends[np.minimum(last, len(blocks) - 1)]
        self._seeds = seed, epoch

    def __call__(self, positions):
        """The numbers of the samples at these positions of the epoch: int64."""
        positions = np.asarray(positions, np.int64)
        if self._is_blocked:
            return self._in_blocks(positions)
        return positions if self._permutation is None else self._permutation(positions)

    def _in_blocks(self, positions):
        windows = np.searchsorted(self._window_ends, positions, side="right")
        moved = np.empty_like(positions)
        for window in np.unique(windows):
            mine = windows == window
            begin = int(self._window_ends[window - 1]) if window else 0
            count = int(self._window_ends[window]) - begin
            moved[mine] = begin + Permutation(count, *self._seeds, int(window))(positions[mine] - begin)
        block = np.searchsorted(self._block_ends, moved, side="right")
        return self._begins[block] + moved - (self._block_ends[block] - self._lengths[block])
