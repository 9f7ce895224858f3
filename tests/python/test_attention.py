"""Distributed attention against dense attention in float64, on real ranks."""

import signal

import numpy as np
import pytest
import rueda as hvd
import rueda.attention as ra
import torch
from expect import raises
from worlds import ranks, run_ranks

LENGTH = 53  # divisible by nothing


def inputs(heads=4, kv_heads=2, dim=16, batch=2, length=LENGTH, dtype=torch.float32):
    torch.manual_seed(1)
    shapes = [(batch, length, h, dim) for h in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def dense(q, k, v, times):
    """Output and log-sum-exp; ``times`` (heads or 1, n, n) says how often a key counts."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = scores + torch.log(torch.as_tensor(times, dtype=torch.float64))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(torch.isinf(lse), 0.0, lse)[..., None])
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


def causal(n=LENGTH):
    return torch.tril(torch.ones(n, n))[None]


def error(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def check(call, times, layout="contiguous", **shape):
    """Forward, log-sum-exp and gradients of a call on shards, against the whole."""
    *qkv, dout = inputs(**shape)
    whole = [x.clone().double().requires_grad_() for x in qkv]
    wanted, lse = dense(*whole, times)
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


@ranks(1, 2, 3)
def test_every_scheme_gives_the_exact_result_and_gradients():
    size = hvd.size()
    for layout in ("contiguous", "zigzag", "striped"):
        for options in ({}, {"rotate": "q"}, {"chunk_tokens": 4}):
            check(lambda *x, **o: ra.ring_attention(*x, causal=True, **o, **options), causal(), layout)
        check(lambda *x, **o: ra.ulysses_attention(*x, causal=True, **o), causal(), layout)
    check(ra.ring_attention, torch.ones(1, LENGTH, LENGTH))
    check(ra.all_gather_attention, torch.ones(1, LENGTH, LENGTH), "striped")
    check(lambda *x, **o: ra.usp_attention(*x, ulysses_degree=size, causal=True, **o), causal())
    i = torch.arange(LENGTH)
    band = ((i[:, None] - i <= 9) & (i - i[:, None] <= 3)).float()[None]
    check(lambda *x, **o: ra.ring_attention(*x, window_size=(9, 3), **o), band, "zigzag")
    # Heads that the ranks do not divide; fewer KV heads than ranks.
    check(ra.ulysses_attention, torch.ones(1, LENGTH, LENGTH), heads=5, kv_heads=1)


@ranks(4)
def test_hybrid_of_exchange_and_ring():
    check(
        lambda *x, **o: ra.usp_attention(*x, ulysses_degree=2, causal=True, **o), causal(), "zigzag"
    )


@ranks(2)
def test_dilated_attention_is_one_softmax_over_all_pairs():
    pairs = [(8, 1), (24, 3)]
    times = torch.zeros(4, LENGTH, LENGTH)
    for head in range(4):
        for w, r in pairs:
            t = torch.arange(LENGTH)
            chosen = t % w % r == head // 2 % r  # two query heads for each KV head
            times[head] += chosen[:, None] & chosen & (t[:, None] // w == t // w)
    lengths, rates = zip(*pairs)
    for layout in ("contiguous", "striped"):
        check(
            lambda *x, **o: ra.ring_dilated_attention(*x, lengths, rates, causal=True, **o),
            times * causal(),
            layout,
        )


@ranks(2)
def test_detached_mixing_weights_have_no_gradient():
    pairs = [(8, 1), (24, 2)]
    *qkv, dout = inputs()
    whole = [x.clone().double().requires_grad_() for x in qkv]
    t = torch.arange(LENGTH)
    outs, lses = [], []
    for w, r in pairs:
        times = torch.zeros(4, LENGTH, LENGTH)
        for head in range(4):
            chosen = t % w % r == head // 2 % r
            times[head] += chosen[:, None] & chosen & (t[:, None] // w == t // w)
        out, lse = dense(*whole, times * causal())
        outs.append(out)
        lses.append(lse.detach())
    weights = torch.softmax(torch.stack(lses), 0).transpose(2, 3).unsqueeze(-1)
    wanted = sum(weight * out for weight, out in zip(weights, outs))
    wanted.backward(dout.double())
    shards = [ra.shard_sequence(x).requires_grad_() for x in qkv]
    lengths, rates = zip(*pairs)
    options = {"causal": True, "return_lse": True}
    out, lse = ra.ring_dilated_attention(*shards, lengths, rates, mix_grad="detached", **options)
    exact, exact_lse = ra.ring_dilated_attention(*shards, lengths, rates, **options)
    assert error(out.detach(), exact.detach().double()) <= 1e-6
    assert error(lse, exact_lse.detach().double()) <= 1e-6
    out.backward(ra.shard_sequence(dout))
    for shard, full in zip(shards, whole):
        assert error(ra.unshard_sequence(shard.grad, length=LENGTH), full.grad) <= 2e-6
    with raises(ValueError, "'exact' or 'detached'"):
        ra.ring_dilated_attention(*shards, lengths, rates, mix_grad="none")


@ranks(2)
def test_block_masks_from_a_density_and_a_seed():
    mask = ra.BlockMask.random(LENGTH, 8, density=0.3, seed=5)
    same = hvd.allgather_object(mask.bytes)
    assert same[0] == same[1]
    seen = torch.from_numpy(np.kron(mask.dense[0], np.ones((8, 8))))[:LENGTH, :LENGTH]
    check(lambda *x, **o: ra.ring_block_sparse_attention(*x, mask, **o), seen[None], "zigzag")


@ranks(2)
def test_packed_sequences():
    ends = [0, 10, 11, 40, LENGTH]
    t = torch.arange(LENGTH)
    which = torch.bucketize(t, torch.tensor(ends[1:]), right=True)
    q, k, v, _ = inputs(batch=1)
    wanted, _ = dense(q, k, v, ((which[:, None] == which).float() * causal()[0])[None])
    shards = [ra.shard_sequence(x, layout="striped")[0] for x in (q, k, v)]
    out = ra.ring_attention_varlen(*shards, ends, causal=True)
    assert error(ra.unshard_sequence(out[None], layout="striped", length=LENGTH), wanted) <= 1e-6


@ranks(2)
def test_numpy_half_precision_and_compression():
    q, k, v, _ = inputs()
    wanted, _ = dense(q, k, v, causal())
    arrays = [ra.shard_sequence(x.numpy(), layout="zigzag") for x in (q, k, v)]
    out = ra.ring_attention(*arrays, causal=True, layout="zigzag")
    whole = ra.unshard_sequence(out, layout="zigzag", length=LENGTH)
    assert isinstance(whole, np.ndarray) and error(torch.from_numpy(whole), wanted) <= 1e-6
    shards = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
    options = {"causal": True, "layout": "zigzag"}
    rough = ra.ring_attention(*shards, compression="bfloat16", **options)
    assert 1e-6 < error(ra.unshard_sequence(rough, layout="zigzag"), wanted) <= 4e-3
    for dtype in (torch.bfloat16, torch.float16):
        half = [x.to(dtype) for x in (q, k, v)]
        exact, _ = dense(*half, causal())
        shards = [ra.shard_sequence(x, layout="zigzag") for x in half]
        out = ra.unshard_sequence(ra.ring_attention(*shards, **options), layout="zigzag")
        assert out.dtype == dtype and error(out, exact) <= 4e-3


@ranks(2)
def test_merging_results_over_two_sets_of_keys():
    q, k, v, _ = inputs()
    alone = hvd.ProcessSet([hvd.rank()])
    sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
    alone = sets[hvd.rank()]
    parts = []
    for allowed in (causal(), 1 - causal()):
        mask = ra.BlockMask(allowed[0].numpy(), LENGTH, 1)
        parts += ra.block_sparse_attention(q, k, v, mask, process_set=alone, return_lse=True)
    wanted, lse = dense(q, k, v, torch.ones(1, LENGTH, LENGTH))
    for make in (lambda x: x, lambda x: x.numpy()):
        out, merged = ra.merge_attention(*map(make, parts))
        assert error(torch.as_tensor(out), wanted) <= 1e-6
        assert error(torch.as_tensor(merged), lse) <= 2e-6
    for process_set in sets:
        hvd.remove_process_set(process_set)


@ranks(3)
def test_mistakes_are_errors_that_say_what_to_do():
    q, k, v, _ = inputs()
    shards = [ra.shard_sequence(x, layout="zigzag") for x in (q, k, v)]
    with raises(ValueError, "expected one of 'contiguous'"):
        ra.ring_attention(*shards, layout="spiral")
    with raises(ValueError, "use shard_sequence"):
        ra.ring_attention(q, k, v, length=LENGTH)
    with raises(ValueError, "no multiple of"):
        ra.ring_attention(shards[0][:, :, :3].contiguous(), *shards[1:], layout="zigzag")
    with raises(ValueError, "'float64', expected"):
        ra.ring_attention(*(x.double() for x in shards), layout="zigzag")
    with raises(ValueError, "does not divide"):
        ra.usp_attention(*shards, ulysses_degree=2, layout="zigzag")


def attends_until_one_is_killed():
    q, k, v, _ = inputs()
    shards = [ra.shard_sequence(x, layout="zigzag").requires_grad_() for x in (q, k, v)]
    ra.ring_attention(*shards, causal=True, layout="zigzag", length=LENGTH)
    if hvd.rank() == 1:
        import os

        os.kill(os.getpid(), signal.SIGKILL)
    ra.ring_attention(*shards, causal=True, layout="zigzag", length=LENGTH)


def test_a_killed_rank_is_named_with_the_step():
    outcome = run_ranks(3, attends_until_one_is_killed)
    assert outcome.code != 0
    told = [r["attends_until_one_is_killed"] for r in outcome.reports if r]
    assert told, outcome.output
    for report in told:
        assert "HorovodInternalError" in report["types"], report
        assert "attention forward, step" in report["error"], report
        assert "rank 1" in report["error"], report


def test_plans_can_be_looked_at_without_a_job():
    plan = ra.AttentionPlan(
        rank=3, ranks=8, length=4096, heads=8, kv_heads=2, head_dim=64, layout="zigzag", causal=True
    )
    assert plan.tokens == 512 and plan.steps == 8
    assert plan.balance <= 1.01
    ring = 7 * 512 * 2 * 2 * 64 * 4
    full = ra.AttentionPlan(rank=3, ranks=8, length=4096, heads=8, kv_heads=2, head_dim=64)
    assert full.bytes_sent_forward == ring
    with pytest.raises(ValueError, match="no rank 8"):
        ra.AttentionPlan(rank=8, ranks=8, length=64, heads=1, head_dim=8)


@ranks(2)
def test_call_sites_of_ring_flash_attention_run():
    from rueda.compat import ring_flash_attn as rfa

    q, k, v, dout = inputs(kv_heads=4)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted, _ = dense(*whole, causal())
    wanted.backward(dout.double())
    for name, layout in (("zigzag_ring", "zigzag"), ("stripe", "striped"), ("ring", "contiguous")):
        qkv = torch.stack([ra.shard_sequence(x, layout=layout) for x in (q, k, v)], 2)
        qkv.requires_grad_()
        out, lse, _ = getattr(rfa, f"{name}_flash_attn_qkvpacked_func")(
            qkv, dropout_p=0, causal=True, window_size=(-1, -1), alibi_slopes=None,
            deterministic=False, return_attn_probs=True,
        )  # fmt: skip
        assert lse.shape == (2, 4, out.shape[1])
        out.backward(ra.shard_sequence(dout, layout=layout))
        for i, full in enumerate(whole):
            together = ra.unshard_sequence(qkv.grad[:, :, i], layout=layout, length=LENGTH)
            assert error(together, full.grad) <= 2e-6
        packed = getattr(rfa, f"{name}_flash_attn_kvpacked_func")
        again = packed(qkv[:, :, 0], qkv[:, :, 1:], causal=True)
        assert torch.equal(again, out)
        with raises(NotImplementedError, "dropout"):
            packed(qkv[:, :, 0], qkv[:, :, 1:], 0.1)
