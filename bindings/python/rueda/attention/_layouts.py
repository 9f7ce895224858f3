"""Which rank holds which tokens, as runs (begin, count, step) of positions.

In Python and nothing but arithmetic, so that torch.compile sees through it; the library's planner
has the same (``rueda_attention_tokens``), and a test compares them.
"""

import numpy as np

from rueda.attention import _groups

LAYOUTS = {"contiguous": 0, "zigzag": 1, "striped": 2}


def _part(length, index, parts):
    """The first ``length % parts`` parts have one token more."""
    rows, more = length // parts, length % parts
    return index * rows + min(index, more), rows + (1 if index < more else 0), 1


def runs_of(layout, length, rank, world):
    if layout == "contiguous":
        return [_part(length, rank, world)]
    if layout == "zigzag":
        return [_part(length, rank, 2 * world), _part(length, 2 * world - 1 - rank, 2 * world)]
    if layout == "striped":
        return [(rank, (length - rank + world - 1) // world, world)]
    raise ValueError(
        f"layout is {layout!r}, expected one of {', '.join(map(repr, LAYOUTS))}"
    )


def position_ids(length=None, layout="contiguous", rank=None, world=None, process_set=None,
                 cu_seqlens=None):  # fmt: skip
    """Positions of a rank's tokens, in the order of its tensors (int64): for rotary embeddings.

    Parameters
    ----------
    length : int
        Tokens of the whole sequence.
    rank, world : int, optional
        This rank's place in the process set, and the set's size, unless given.
    cu_seqlens : sequence of int, optional
        Instead of ``length``: packed sequences, each spread by itself (``layout_of="sequence"`` of
        `ring_attention_varlen`). The positions are still those in all of them together.
    """
    process_set = _groups.given(process_set)
    rank = process_set.rank() if rank is None else rank
    world = process_set.size() if world is None else world
    if cu_seqlens is None and length is None:
        raise ValueError("position_ids needs length, tokens of the whole sequence, or cu_seqlens")
    if cu_seqlens is None:
        ends = (0, length)
    else:
        ends = tuple(int(x) for x in cu_seqlens)
    if not 0 <= rank < world or min(ends) < 0:
        raise ValueError(f"no rank {rank} of {world} with {ends[-1]} tokens")
    each = [
        start + begin + step * np.arange(count)
        for start, end in zip(ends, ends[1:])
        for begin, count, step in runs_of(layout, end - start, rank, world)
        if count > 0
    ]
    return np.concatenate(each) if each else np.arange(0)


def places(layout, length, process_set):
    """Positions of the tokens of all ranks, one rank after another, and those of this rank."""
    ranks = range(process_set.size())
    each = [position_ids(length, layout, rank, len(ranks)) for rank in ranks]
    return np.concatenate(each), each[process_set.rank()]
