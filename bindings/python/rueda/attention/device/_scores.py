"""What becomes of scores before the softmax: softcap, c * tanh(score / c), and after it ALiBi, -slope * |place of the query - place of
the key|; flash-attention's order."""

import collections
import functools

import torch

Scores = collections.namedtuple("Scores", "softcap slopes")
Scores.__doc__ = """``softcap``: 0.0: none. ``slopes``: float32, (1 or batch, query heads) of the tensors that it is used with; None: none."""
PLAIN = Scores(0.0, None)


@functools.lru_cache(maxsize=64)
def _slopes(slopes, heads, begin, end, device):
    """On the device, those of heads [begin, end). The host waits, once."""
    return torch.tensor(slopes, dtype=torch.float32).view(-1, heads)[:, begin:end].to(device)


def scores_of(plan, device):
    """Of the rank's query heads, those that it computes with."""
    spec = plan.spec
    slopes = spec.alibi_slopes or None
    if slopes is not None:
        slopes = _slopes(slopes, spec.heads, plan.q_begin, plan.q_end, device)
    return Scores(spec.softcap, slopes) if spec.softcap or slopes is not None else PLAIN


def of_heads(scores, heads):
    """Of a slice of the query heads."""
    return scores if scores.slopes is None else scores._replace(slopes=scores.slopes[:, heads])


def by_kv_head(slopes, kv_heads):
    """(1 or batch, kv heads, group, 1, 1): as they multiply scores of (batch, kv heads, group, queries, keys)."""
    return slopes.reshape(slopes.shape[0], kv_heads, -1, 1, 1)
