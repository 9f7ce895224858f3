"""Which rank writes which part of the state that all have: about as many bytes each."""

import collections

from rueda.torch._safetensors import itemsize

Part = collections.namedtuple("Part", "name first last")
Part.__doc__ = """Elements of a tensor, in the order of its values."""

_LEAST = 1 << 16  # bytes: what is smaller is not cut
_ROUND = 16  # elements: cuts are at multiples


def shares(forms, firsts, ranks):
    """The parts of each rank, which together are every element once.

    Parameters
    ----------
    forms : dict
        Of each tensor's name, (dtype, shape).
    firsts : set of str
        Tensors that are the first rank's, whole.
    ranks : int
    """
    counts = {name: _product(shape) for name, (_, shape) in forms.items()}
    sizes = {name: counts[name] * itemsize(dtype) for name, (dtype, _) in forms.items()}
    alone = sum(sizes[name] for name in firsts)
    others = sum(sizes.values()) - alone
    # In a line of all bytes that are shared out, where each rank's end.
    ends = [min(max((alone + others) * (rank + 1) // ranks - alone, 0), others) for rank in range(ranks - 1)]
    result = [[] for _ in range(ranks)]
    rank = at = 0
    for name, count in counts.items():
        if name in firsts:
            result[0].append(Part(name, 0, count))
            continue
        size, first = sizes[name], 0
        while rank < ranks - 1 and ends[rank] <= at + size:
            cut = _cut(ends[rank] - at, size, count)
            if cut > first:
                result[rank].append(Part(name, first, cut))
                first = cut
            rank += 1
            if cut == count:
                break
        if first < count or count == 0:
            result[rank].append(Part(name, first, count))
        at += size
    return result


def _cut(byte, size, count):
    """The element before which a tensor is cut, near a byte of it."""
    if byte <= 0 or size == 0:
        return 0
    if size < _LEAST:
        return count if 2 * byte >= size else 0
    return min(count, -(-(byte * count // size) // _ROUND) * _ROUND)


def _product(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count
