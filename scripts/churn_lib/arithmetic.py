"""What each rank adds in each step, and what must come of it: whole numbers, so that ranks and observer compare bits.

The ranks compute with rueda, the observer alone with NumPy.
"""

import hashlib

import numpy as np

RATE, MOMENTUM = 1 / 64, 0.5  # powers of two: every product is exact


def contribution(member, step, size):
    """Of a member (its number in the job, not its rank) in a step: ``size`` whole numbers within a thousand of 0."""
    start = (member * 7919 + step * 104729) % 2003
    return ((start + 31 * np.arange(size, dtype=np.int64)) % 2003 - 1001).astype(np.float64)


def digest(*arrays):
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


class Replay:
    """The training by one observer, who was never interrupted."""

    def __init__(self, size):
        self.weights, self.velocity = np.zeros(size), np.zeros(size)

    def step(self, number, members):
        """Step ``number`` by these members: the sum of all numbers, and the digest afterwards."""
        total = sum(contribution(member, number, self.weights.size) for member in members)
        self.velocity = self.velocity * MOMENTUM + total
        self.weights = self.weights - self.velocity * RATE
        return int(total.sum()), digest(self.weights, self.velocity)
