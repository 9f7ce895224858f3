"""Sums of a softmax that is not complete: (acc, m, l) of each query, float32, as in the library's own kernels.

m is about the largest score so far, l the sum of exp(score - m), acc that of exp(score - m) * v; (0, -infinity, 0) is nothing.
A library's result (out, lse) is acc = out, m = lse, l = 1. acc is (batch, rows, heads, head_dim), m and l (batch, heads, rows).
"""

import torch


def weights(x):
    """(batch, heads, rows) as it multiplies (batch, rows, heads, head_dim)."""
    return x.transpose(1, 2).unsqueeze(-1)


def add(into, other):
    """Adds partial sums to others in place; each is (acc, m, l)."""
    acc, m, sums = into
    more, largest, their_sums = other
    now = torch.maximum(m, largest)
    safe = torch.where(torch.isinf(now), torch.zeros_like(now), now)
    keep, take = torch.exp(m - safe), torch.exp(largest - safe)
    acc.mul_(weights(keep)).add_(more * weights(take))
    sums.mul_(keep).add_(take if their_sums is None else take * their_sums)
    m.copy_(now)


def finish(acc, m, sums, out, low):
    """The result into ``out``, the log-sum-exp into m; what float32 lacks of it into ``low``, where there is one. Queries without keys:
    0, -infinity."""
    none = sums == 0
    total = torch.where(none, torch.ones_like(sums), sums)
    acc.div_(weights(total))
    if out is not acc:
        out.copy_(acc)
    if low is None:
        m.add_(torch.log(total))
        return
    exact = m.double() + torch.log(total.double())
    m.copy_(exact)
    low.copy_(torch.where(none, torch.zeros_like(exact), exact - m.double()))
