"""Keys and values of a rank's cache, and which of them queries see."""

import numpy as np
import torch


def on_device(array, device):
    """An array of the host as a tensor of the device, given to the current stream: the host does not wait."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Cache:
    """``k``, ``v``: (blocks, block_tokens, kv_heads, head_dim); ``table``: (sequences, most blocks) int32 or None: sequence i is block i."""

    def __init__(self, k, v, table, sequences):
        self.k, self.v, self.table, self.sequences = k, v, table, sequences
        self.block_tokens = k.shape[1]

    def rows(self, spans, at, count):
        """(k, v, places, valid) of ``count`` places of each sequence, ``at`` places behind the begin of its span. k, v: (sequences, count,
        kv_heads, head_dim). valid, (sequences, count), False where a span has ended; None: nowhere. v is 0 there."""
        places = spans.begin[:, None] + torch.arange(at, at + count, device=self.k.device)
        valid = None if spans.reach(at + count) else places < spans.end[:, None]
        if self.table is None and spans.starts_alike:
            first = spans.first + at
            k, v = (x[: self.sequences, first : first + count] for x in (self.k, self.v))
        else:
            k, v = self._gathered(places, spans)
        if valid is not None:  # what lies behind the end may be anything
            v = v.masked_fill(~valid[..., None, None], 0)
        return k, v, places, valid

    def _gathered(self, places, spans):
        safe = torch.minimum(places, spans.end[:, None] - 1).clamp_(min=0)
        if self.table is None:
            blocks = torch.arange(self.sequences, device=safe.device)[:, None]
        else:
            blocks = self.table.gather(1, safe // self.block_tokens).long()
        rows = blocks * self.block_tokens + safe % self.block_tokens
        # A sequence without tokens here may have anything in its table.
        rows.clamp_(0, self.k.shape[0] * self.block_tokens - 1)
        return (x.view(-1, *x.shape[2:])[rows] for x in (self.k, self.v))


class Spans:
    """Of each sequence places [begin, end) that are here, of which a query sees those within ``left`` tokens before it (-1: all); all
    queries see [begin, common). ``begin``, ``end``: tensors of the device. ``position``: of the first query, (sequences,)."""

    def __init__(self, numbers, left, spec, rank, ranks, tensors, position):
        self._begin, self._end, self._common = numbers
        self.left, self.spec, self.rank, self.ranks = left, spec, rank, ranks
        self.begin, self.end, self.common = tensors
        self.position = position
        self.longest = int((self._end - self._begin).max(initial=0))
        self.first = int(self._begin[0]) if len(self._begin) else 0
        self.starts_alike = bool((self._begin == self.first).all())

    @classmethod
    def of(cls, numbers, lengths, spec, rank, ranks, device):
        """Those of each window; ``numbers`` are the library's."""
        if not len(numbers):
            return []
        lefts = np.unique(numbers[:, 3])
        table = np.zeros((len(lefts), 3, len(lengths)), np.int64)
        for sequence, begin, end, left, common in numbers:
            table[np.searchsorted(lefts, left), :, sequence] = begin, end, common
        positions = np.asarray(lengths, np.int64) - spec.queries
        there = on_device(np.concatenate([table.reshape(-1), positions]), device)
        position = there[table.size :]
        tensors = there[: table.size].view(table.shape)
        return [
            cls(table[i], int(left), spec, rank, ranks, tensors[i], position) for i, left in enumerate(lefts)
        ]

    def reach(self, count):
        """Whether each span has ``count`` places."""
        return bool((self._end - self._begin >= count).all())

    @property
    def has_common(self):
        """Whether all queries see some places, which begin a sequence."""
        return self.left < 0 and not self._begin.any() and bool(self._common.any())

    def behind_common(self):
        """What not all queries see."""
        numbers = self._common, self._end, self._common
        tensors = self.common, self.end, self.common
        return Spans(numbers, self.left, self.spec, self.rank, self.ranks, tensors, self.position)
