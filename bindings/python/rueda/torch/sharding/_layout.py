"""Which parameters lie together in flat memory, and which part of it is whose. Pure.

A batch is the unit that is reduced, updated and gathered: parameters of one type, device and
``param_group``, one behind the other in the order in which backward reaches them, so that the first batches
are complete while backward goes on. It is cut in equal shares, one for each rank, whatever lies where.
"""

import collections
import itertools

BATCH_BYTES = 25 << 20  # of a batch that is full; DDP's size
SMALL_BATCHES = 24  # of which two are what a rank has of gradients beside its shares
LEAST_BYTES = 1 << 20  # of such a batch
ALIGNED = 256  # elements: shares begin at cache lines and vectors of any type, and at blocks of 8-bit state

Place = collections.namedtuple("Place", "parameter offset")
Place.__doc__ = """``parameter``: its number in the list that was given; ``offset``: of its first element."""

Layout = collections.namedtuple("Layout", "places count share")
Layout.__doc__ = """One batch: its `Place`s, their elements, and the elements of each rank's share; the last share ends in
elements that are nobody's."""


def batches(kinds, counts, itemsizes, ranks, most_bytes=BATCH_BYTES):
    """The `Layout` of each batch, in the order in which backward completes them.

    Parameters
    ----------
    kinds : list
        Of each parameter, in the order of forward: what it has in common with those of its batch.
    counts, itemsizes : list of int
        Its elements, and their bytes.
    ranks : int
    """
    filling, full = {}, []  # kind: [places, count]
    for number in reversed(range(len(kinds))):
        kind = kinds[number]
        places, count = filling.pop(kind, ([], 0))
        places.append(Place(number, count))
        count += counts[number]
        if count * itemsizes[number] >= most_bytes:
            full.append(Layout(places, count, share(count, ranks)))
        else:
            filling[kind] = places, count
    rest = [Layout(places, count, share(count, ranks)) for places, count in filling.values()]
    return sorted(full + rest, key=lambda batch: -batch.places[-1].parameter)


def small(nbytes):
    """The most bytes of a batch, of parameters of so many bytes, whose gradients are given up as soon as they are reduced."""
    return min(max(nbytes // SMALL_BATCHES, LEAST_BYTES), BATCH_BYTES)


def share(count, ranks):
    """Elements of a rank's share of ``count``; never none."""
    return max(1, -(-count // (ranks * ALIGNED))) * ALIGNED


def overlap(place_offset, count, begin, end):
    """(first, last) element of a parameter that lies in [begin, end) of its batch; None: none does."""
    first, last = max(begin - place_offset, 0), min(end - place_offset, count)
    return (first, last) if first < last else None


def is_dense(shape, stride):
    """Whether the elements lie one behind the other, in whatever order."""
    expected = 1
    for step, extent in sorted(zip(stride, shape)):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def inner(number, most=6, dims=3):
    """Extents behind the first of what a piece's share is said to be, so that ranks which bring different pieces do not
    fit: 84 forms, in turn. Their product divides `ALIGNED`."""
    forms = [e for e in itertools.product(range(most + 1), repeat=dims) if sum(e) <= most]
    return tuple(1 << each for each in forms[number % len(forms)])
