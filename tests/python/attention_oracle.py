"""Dense attention in float64, and the comparison of distributed attention with it."""

import numpy as np
import rueda.attention as ra
import torch

LENGTH = 53  # divisible by nothing


def inputs(heads=4, kv_heads=2, dim=16, batch=2, length=LENGTH, dtype=torch.float32):
    torch.manual_seed(1)
    shapes = [(batch, length, h, dim) for h in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def dense(q, k, v, times, softcap=0.0, slopes=None):
    """Output and log-sum-exp; ``times`` (heads or 1, n, n) says how often a key counts; ``slopes`` (heads,) or (batch, heads)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        i, j = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])
        scores = scores - torch.as_tensor(slopes, dtype=torch.float64)[..., None, None] * (i - j).abs()
    scores = scores + torch.log(torch.as_tensor(times, dtype=torch.float64))
    none = torch.isinf(scores).all(-1)  # without keys: zeros, and -infinity
    scores = torch.where(none[..., None], 0.0, scores)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse[..., None]) * ~none[..., None]
    lse = torch.where(none, -torch.inf, lse)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


def causal(n=LENGTH):
    return torch.tril(torch.ones(n, n))[None]


def error(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def check(call, times, layout="contiguous", softcap=0.0, slopes=None, **shape):
    """Forward, log-sum-exp and gradients of a call on shards, against the whole."""
    *qkv, dout = inputs(**shape)
    whole = [x.clone().double().requires_grad_() for x in qkv]
    wanted, lse = dense(*whole, times, softcap, slopes)
    wanted.backward(dout.double())
    shards = [ra.shard_sequence(x, layout=layout).requires_grad_() for x in qkv]
    out, own_lse = call(*shards, layout=layout, return_lse=True)
    length = qkv[0].shape[1]
    together = ra.unshard_sequence(out, layout=layout, length=length)
    assert error(together.detach(), wanted.detach()) <= 1e-6
    position = torch.from_numpy(ra.position_ids(length, layout))
    own = lse.detach()[:, :, position]
    assert torch.equal(torch.isinf(own_lse), torch.isinf(own))
    seen = ~torch.isinf(own)
    assert torch.allclose(own_lse.detach()[seen].double(), own[seen], rtol=2e-6, atol=2e-6)
    out.backward(ra.shard_sequence(dout, layout=layout))
    for shard, full in zip(shards, whole):
        gathered = ra.unshard_sequence(shard.grad, layout=layout, length=length)
        assert error(gathered, full.grad) <= 2e-6


def dilated(pairs, heads=4, group=2, n=LENGTH, head_groups="all"):
    """How often pairs (segment, rate) select each key for each query and head: LongNet's definition."""
    kv_heads = heads // group
    t = torch.arange(n)
    times = torch.zeros(heads, n, n)
    begin = 0
    for p, (w, r) in enumerate(pairs):
        mine = range(kv_heads)
        if head_groups == "split":
            count = kv_heads // len(pairs) + (p < kv_heads % len(pairs))
            mine, begin = range(begin, begin + count), begin + count
        for place, kv_head in enumerate(mine):
            chosen = t % w % r == place % r
            pair = (chosen[:, None] & chosen & (t[:, None] // w == t // w)).float()
            times[kv_head * group : (kv_head + 1) * group] += pair
    return times


def blocks_of(mask):
    """A `BlockMask` as (heads, n, n) of 0 and 1."""
    size = np.ones((mask.block, mask.block))
    whole = np.stack([np.kron(dense, size) for dense in mask.dense])
    return torch.from_numpy(whole)[:, : mask.length, : mask.length]
