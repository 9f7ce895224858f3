"""Heads for tokens and back, around attention that is not rueda's own, for arrays of JAX.

As `_heads` for PyTorch, but the shapes of a program are fixed when it is traced: all ranks have as many
heads and as many tokens each. Differentiable as often as the function in between is.
"""

import jax.numpy as jnp
import numpy as np

from rueda.attention import _local
from rueda.attention._layouts import places, runs_of
from rueda.jax.collectives import alltoall


def with_local_attention(q, k, v, local_attention, layout, process_set, length=None):
    """Whole sequences and a share of the heads go to ``local_attention``; its result comes back."""
    _local.check(q, k, v, local_attention)
    size = process_set.size()
    length = size * q.shape[1] if length is None else length
    tokens = {sum(run[1] for run in runs_of(layout, length, rank, size)) for rank in range(size)}
    if len(tokens) > 1:
        raise ValueError(
            f"with local_attention of JAX's arrays all {size} ranks have as many tokens each, and the {layout} "
            f"layout of {length} tokens gives them {min(tokens)} to {max(tokens)}: fill the sequence up"
        )
    _local.check_tokens(q, k, layout, length, tokens.pop())
    if q.shape[2] % size:
        raise ValueError(
            f"with local_attention of JAX's arrays the {size} ranks have as many heads each, and there are "
            f"{q.shape[2]}: take a number of heads that {size} divides"
        )
    if k.shape[2] % size:  # too few to share: each query head takes its own along
        k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    whole = [_whole(x, process_set) for x in (q, k, v)]
    positions, _ = places(layout, length, process_set)
    if layout != "contiguous":
        order = np.argsort(positions)
        whole = [x[:, order] for x in whole]
    out = local_attention(*whole)
    _local.check_result(out, whole)
    if layout != "contiguous":
        out = out[:, positions]
    return _back(out, process_set)


def _whole(x, process_set):
    """(batch, own tokens, all heads, width) -> (batch, all tokens, own heads, width)."""
    size = process_set.size()
    batch, tokens, heads, width = x.shape
    received = alltoall(x.transpose(2, 0, 1, 3), process_set=process_set)
    parts = received.reshape(size, heads // size, batch, tokens, width)
    return parts.transpose(2, 0, 3, 1, 4).reshape(batch, size * tokens, heads // size, width)


def _back(x, process_set):
    """(batch, all tokens, own heads, width) -> (batch, own tokens, all heads, width)."""
    size = process_set.size()
    batch, tokens, heads, width = x.shape
    parts = x.reshape(batch, size, tokens // size, heads, width).transpose(1, 3, 0, 2, 4)
    received = alltoall(parts.reshape(size * heads, batch, tokens // size, width), process_set=process_set)
    return received.transpose(1, 2, 0, 3)
