"""Heads for tokens and back, for attention that is not rueda's own: DeepSpeed's Ulysses.

Before, each rank of a set has some tokens and all heads; after, all tokens and some heads. Any
number of heads and tokens; differentiable, as `alltoall` is. PyTorch tensors (batch, tokens, heads,
width).
"""

import torch

from rueda import torch as hvd
from rueda.attention import _local
from rueda.attention._layouts import places, runs_of
from rueda.attention._lengths import length_of


class Exchange:
    """Of one call: who has which tokens and heads.

    tokens : list of int
        Of each rank.
    heads : list of int
        Query heads of each rank, after; ``kv_heads`` likewise.
    """

    def __init__(self, process_set, tokens, heads, kv_heads):
        self.process_set = process_set
        self.size, self.rank = process_set.size(), process_set.rank()
        self.tokens = tokens
        self.group = heads // kv_heads
        self.repeat = kv_heads < self.size  # too few to share: each query head takes its own along
        if self.repeat:
            self.heads = self.kv_heads = _split(heads, self.size)
        else:
            self.kv_heads = _split(kv_heads, self.size)
            self.heads = [self.group * count for count in self.kv_heads]

    def keys(self, x):
        """`whole` of keys or values."""
        if self.repeat and self.group > 1:
            x = x.repeat_interleave(self.group, 2)
        return self.whole(x, self.kv_heads)

    def whole(self, x, heads=None):
        """(batch, own tokens, all heads, width) -> (batch, all tokens, own heads, width)."""
        heads = heads or self.heads
        if self.size == 1:
            return x
        batch, tokens, _, width = x.shape
        out = [batch * tokens * width * count for count in heads]
        rows = x.permute(2, 0, 1, 3).reshape(-1)
        received, _ = hvd.alltoall(rows, out, process_set=self.process_set)
        mine = heads[self.rank]
        parts = received.split([batch * count * width * mine for count in self.tokens])
        parts = [
            part.reshape(mine, batch, count, width) for part, count in zip(parts, self.tokens)
        ]
        return torch.cat(parts, 2).permute(1, 2, 0, 3)

    def no_heads(self, q, k, v):
        """What a rank without heads sends back; it takes part in the backward of all three."""
        return q + 0 * (k.sum() + v.sum())

    def back(self, x):
        """(batch, all tokens, own query heads, width) -> (batch, own tokens, all heads, width)."""
        if self.size == 1:
            return x
        batch, _, mine, width = x.shape
        parts = x.permute(2, 0, 1, 3).split(self.tokens, 2)
        rows = torch.cat([part.reshape(-1) for part in parts])
        out = [batch * count * width * mine for count in self.tokens]
        received, _ = hvd.alltoall(rows, out, process_set=self.process_set)
        own = self.tokens[self.rank]
        parts = received.split([batch * own * width * count for count in self.heads])
        parts = [part.reshape(count, batch, own, width) for part, count in zip(parts, self.heads)]
        return torch.cat(parts, 0).permute(1, 2, 0, 3)


def _split(count, parts):
    return [count // parts + (1 if i < count % parts else 0) for i in range(parts)]


def with_local_attention(q, k, v, local_attention, layout, process_set, length=None):
    """Whole sequences and a share of the heads go to ``local_attention``; its result comes back."""
    _local.check(q, k, v, local_attention)
    if length is None:
        length = length_of(q.shape[1], process_set)
    size = process_set.size()
    tokens = [sum(run[1] for run in runs_of(layout, length, rank, size)) for rank in range(size)]
    _local.check_tokens(q, k, layout, length, tokens[process_set.rank()])
    exchange = Exchange(process_set, tokens, q.shape[2], k.shape[2])
    whole = [exchange.whole(q), exchange.keys(k), exchange.keys(v)]
    positions = torch.from_numpy(places(layout, length, process_set)[0]).to(q.device)
    if layout != "contiguous":
        order = torch.argsort(positions)
        whole = [x.index_select(1, order) for x in whole]
    if exchange.heads[exchange.rank] == 0:
        out = exchange.no_heads(*whole)
    else:
        out = local_attention(*whole)
        _local.check_result(out, whole)
    if layout != "contiguous":
        out = out.index_select(1, positions)
    return exchange.back(out)
