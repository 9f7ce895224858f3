"""The kernel "torch": ordinary operations of PyTorch, float32, blocks of queries and keys. Takes everything, on any device."""

import torch

from rueda.attention.device._scores import PLAIN, by_kv_head

_QUERIES, _KEYS = 512, 1024  # of a block of scores


def _apart(place, queries, keys, device):
    """Place of each key less that of each query; None where it does not matter."""
    if place is None:
        return None
    q_pos, q_step, k_pos, k_step, *_ = place
    q = torch.arange(queries.start, queries.stop, device=device) * q_step + q_pos
    k = torch.arange(keys.start, keys.stop, device=device) * k_step + k_pos
    return k[None] - q[:, None]


def _scores(q, k, scale, made, apart, place):
    """(batch, kv heads, group, queries, keys), -infinity where nothing is seen; and by how much each changes with what softcap was
    given (None: as much)."""
    batch, rows, heads, width = q.shape
    grouped = q.float().reshape(batch, rows, k.shape[2], heads // k.shape[2], width)
    scores, change = torch.einsum("bqhgd,bkhd->bhgqk", grouped, k.float()) * scale, None
    if made.softcap:
        part = scores / made.softcap
        e = torch.exp(-2 * part.abs())  # loses no digits where the derivative is small
        scores, change = torch.tanh(part) * made.softcap, 4 * e / (1 + e).square()
    if apart is None:
        return scores, change
    if made.slopes is not None:
        scores = scores - by_kv_head(made.slopes, k.shape[2]) * apart.abs().float()
    low, high = place[4:]
    return scores.masked_fill((apart < low) | (apart > high), -torch.inf), change


def _blocks(q, k, place, causal):
    """(queries, keys, how far they are apart) of each block."""
    for row in range(0, q.shape[1], _QUERIES):
        queries = slice(row, min(row + _QUERIES, q.shape[1]))
        for column in range(0, k.shape[1], _KEYS):
            keys = slice(column, min(column + _KEYS, k.shape[1]))
            if causal and keys.start >= queries.stop:
                break
            yield queries, keys, _apart(place, queries, keys, q.device)


_CAUSAL = (0, 1, 0, 1, -(1 << 60), 0)


class Blocks:
    name = "torch"
    what = "operations of PyTorch in float32"
    kinds = ("full", "causal", "band")
    takes_delta = True

    def refuses(self, device, dtype, head_dim, capability):
        return None

    def lacks(self, scores):
        return None

    def fits(self, piece):
        return True

    def partials(self, q, k, v, scale, causal, place, made=PLAIN):
        """(rows of q, (acc, m, l)) block by block. ``made``: what becomes of scores."""
        place = _CAUSAL if causal and place is None else place
        for queries, keys, apart in _blocks(q, k, place, causal):
            scores, _ = _scores(q[:, queries], k[:, keys], scale, made, apart, place)
            m = scores.amax(-1)
            shift = torch.where(torch.isinf(m), torch.zeros_like(m), m)
            p = torch.exp(scores - shift[..., None])
            acc = torch.einsum("bhgqk,bkhd->bqhgd", p, v[:, keys].float())
            yield queries, (acc.flatten(2, 3), m.flatten(1, 2), p.sum(-1).flatten(1, 2))

    def backward(self, dout, q, k, v, lse, delta, scale, causal, place, made=PLAIN):
        """dq, dk, dv in float32."""
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        batch, heads, kv_heads = q.shape[0], q.shape[2], k.shape[2]
        # A query without keys has no weights, whatever its log-sum-exp.
        lse = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
        place = _CAUSAL if causal and place is None else place
        for queries, keys, apart in _blocks(q, k, place, causal):
            rows = queries.stop - queries.start
            shape = (batch, kv_heads, heads // kv_heads, rows, 1)
            scores, change = _scores(q[:, queries], k[:, keys], scale, made, apart, place)
            p = torch.exp(scores - lse[:, :, queries].reshape(shape))
            grouped = (batch, rows, kv_heads, heads // kv_heads, q.shape[3])
            ours, keys_float = dout[:, queries].float().reshape(grouped), k[:, keys].float()
            dv[:, keys] += torch.einsum("bhgqk,bqhgd->bkhd", p, ours)
            dp = torch.einsum("bqhgd,bkhd->bhgqk", ours, v[:, keys].float())
            ds = p * (dp - delta[:, :, queries].reshape(shape)) * scale
            if change is not None:
                ds = ds * change
            dq[:, queries] += torch.einsum("bhgqk,bkhd->bqhgd", ds, keys_float).flatten(2, 3)
            queries_float = q[:, queries].float().reshape(grouped)
            dk[:, keys] += torch.einsum("bhgqk,bqhgd->bkhd", ds, queries_float)
        return dq, dk, dv
