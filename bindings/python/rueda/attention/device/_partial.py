"""Sums of a softmax that is not complete: (acc, m, l) of each query, float32, as in the library's own kernels.

m is about the largest score so far, l the sum of exp(score - m), acc that of exp(score - m) * v; (0, -infinity, 0) is nothing.
A library's result (out, lse) is acc = out, m = lse, l = 1.
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


class Partial:
    """Of all queries of a rank, (batch, rows, heads, head_dim)."""

    def __init__(self, q):
        batch, rows, heads, _ = q.shape
        self.acc = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        self.m = torch.full((batch, heads, rows), -torch.inf, dtype=torch.float32, device=q.device)
        self.sums = torch.zeros_like(self.m)

    def of(self, rows, heads):
        """Views for some rows and heads, which are slices."""
        return self.acc[:, rows, heads], self.m[:, heads, rows], self.sums[:, heads, rows]

    def finish(self, dtype):
        """(out, lse, what lse lacks of the log-sum-exp or None); queries without keys: 0, -infinity."""
        none = self.sums == 0
        sums = torch.where(none, torch.ones_like(self.sums), self.sums)
        out = self.acc.div_(weights(sums)).to(dtype)
        if dtype != torch.float32:
            return out, self.m + torch.log(sums), None
        exact = self.m.double() + torch.log(sums.double())
        lse = exact.float()
        low = torch.where(none, torch.zeros_like(exact), exact - lse.double()).float()
        return out, lse, low
