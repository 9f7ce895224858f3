"""Libraries' attention kernels for GPUs behind their adapters: neutral contributions with the same arguments, shapes and habits compute on the
CPU, in rings against dense attention in float64; PyTorch's own descriptions of its operators (meta tensors) take the same calls."""

import argparse
import sys
import types

import gpu_attention
import pytest
import rueda.attention as ra
import torch
from attention_oracle import LENGTH, causal, dense, error, inputs
from rueda.attention.device import _kernels, _libraries
from rueda.attention.device._blocks import Blocks
from rueda.attention.device._scores import Scores
from test_attention_device import OF_EACH, SLOPES

HALF = torch.bfloat16


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scores_of(q, k, scale, is_causal, softcap=0.0, slopes=None):
    """And how much they change with what softcap was given. ALiBi as flash-attn has it: aligned at the end, of causal calls without what
    a query's scores have in common."""
    scores, change = q.double() @ k.transpose(2, 3) * scale, 1.0
    if softcap:
        part = torch.tanh(scores / softcap)
        scores, change = part * softcap, 1 - part.square()
    if slopes is not None:
        assert slopes.dtype == torch.float32 and slopes.is_contiguous()
        assert tuple(slopes.shape) in (q.shape[1:2], q.shape[:2])
        rows, columns = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])
        bias = columns if is_causal else -(rows - columns).abs()
        scores = scores + slopes.double()[..., None, None] * bias
    if is_causal:
        assert q.shape[2] == k.shape[2], "a causal call that is no square"
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores, change


def softmax(q, k, v, scale, is_causal, *changes):
    """(b, h, s, d), fewer KV heads allowed: out and the log-sum-exp, as a kernel would have them."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    scores, _ = scores_of(q, k, scale, is_causal, *changes)
    lse = torch.logsumexp(scores, -1)
    return (torch.exp(scores - lse[..., None]) @ v).to(q.dtype), lse.float()


def gradients(dout, q, k, v, out, lse, scale, is_causal, *changes):
    """Of the part that these keys are, from the whole's out and lse."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(group, 1).double() for x in (k, v))
    scores, change = scores_of(q, wide_k, scale, is_causal, *changes)
    p = torch.exp(scores - lse.double()[..., None])
    delta = (dout.double() * out.double()).sum(-1, keepdim=True)
    ds = p * (dout.double() @ wide_v.transpose(2, 3) - delta) * scale * change
    dk, dv = ds.transpose(2, 3) @ q.double(), p.transpose(2, 3) @ dout.double()
    shape = (k.shape[0], k.shape[1], group, *k.shape[2:])
    return (ds @ wide_k).to(q.dtype), *(x.reshape(shape).sum(2).to(q.dtype) for x in (dk, dv))


def _look(q, k, multiple, dtypes, same_heads):
    assert q.shape[-1] % multiple == 0 and q.stride(-1) == 1 and k.stride(-1) == 1
    assert q.dtype in dtypes and q.dtype == k.dtype
    assert q.shape[1] == k.shape[1] or not same_heads


def fake_cudnn(monkeypatch):
    def forward(q, k, v, bias, with_lse, dropout, is_causal, debug, *, scale):
        _look(q, k, 8, (HALF, torch.float16), not _libraries.Cudnn.shares_keys)
        assert bias is None and with_lse and not dropout and not debug
        out, lse = softmax(q, k, v, scale, is_causal)
        return out, lse.unsqueeze(-1), None, None, q.shape[2], k.shape[2], None, None, None

    def backward(dout, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout, is_causal, *, scale):
        assert lse.shape == (*q.shape[:3], 1) and lse.is_contiguous() and seed.numel() == offset.numel() == 1
        assert (max_q, max_k) == (q.shape[2], k.shape[2])
        return gradients(dout, q, k, v, out, lse[..., 0], scale, is_causal)

    name = "_scaled_dot_product_cudnn_attention"
    monkeypatch.setattr(torch.ops.aten, name, forward)
    monkeypatch.setattr(torch.ops.aten, name + "_backward", backward)
    return _libraries.Cudnn()


def fake_flash(monkeypatch):
    def forward(q, k, v, dropout, is_causal, debug, *, scale):
        _look(q, k, 8, (HALF, torch.float16), False)
        out, lse = softmax(q, k, v, scale, is_causal)
        return out, lse, None, None, q.shape[2], k.shape[2], torch.zeros(2), torch.zeros(0), None

    def backward(dout, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout, is_causal, seed, offset, *, scale):
        assert lse.shape == q.shape[:3] and lse.is_contiguous() and (max_q, max_k) == (q.shape[2], k.shape[2])
        return gradients(dout, q, k, v, out, lse, scale, is_causal)

    name = "_scaled_dot_product_flash_attention"
    monkeypatch.setattr(torch.ops.aten, name, forward)
    monkeypatch.setattr(torch.ops.aten, name + "_backward", backward)
    return _libraries.Flash()


def fake_efficient(monkeypatch):
    def forward(q, k, v, bias, with_lse, dropout, is_causal, *, scale):
        _look(q, k, 8, (HALF, torch.float16, torch.float32), True)
        assert with_lse
        out, lse = softmax(q, k, v, scale, is_causal)
        rows = (q.shape[2] + 31) // 32 * 32
        padding = torch.full((*q.shape[:2], rows - q.shape[2]), torch.nan)  # what happens to lie there
        return out, torch.cat([lse, padding], -1), torch.zeros(()), torch.zeros(())

    def backward(dout, q, k, v, bias, out, lse, seed, offset, dropout, wanted, is_causal, *, scale):
        assert lse.shape[2] % 32 == 0 and torch.isposinf(lse[:, :, q.shape[2] :]).all()
        assert wanted == [True, True, True, False]
        return *gradients(dout, q, k, v, out, lse[:, :, : q.shape[2]], scale, is_causal), None

    name = "_scaled_dot_product_efficient_attention"
    monkeypatch.setattr(torch.ops.aten, name, forward)
    monkeypatch.setattr(torch.ops.aten, name + "_backward", backward)
    return _libraries.Efficient()


def _heads_second(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def _flash2(results):
    """flash-attn of a version that gives so many results; (b, s, h, d)."""

    def compute(q, k, v, softmax_scale, causal, *changes):
        _look(*_heads_second(q, k), 8, (HALF, torch.float16), False)
        out, lse = softmax(*_heads_second(q, k, v), softmax_scale, causal, *changes)
        lse = torch.where(torch.isneginf(lse), torch.inf, lse)
        out = out.transpose(1, 2)
        if results == 4:
            return out, lse, torch.zeros(0), torch.zeros(2)
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[2] % 128))  # rows rounded up
        return out, q, k, v, out, lse, None, torch.zeros(2)

    def write(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal, *changes):
        grads = gradients(*_heads_second(dout, q, k, v, out), softmax_lse, softmax_scale, causal, *changes)
        for into, grad in zip((dq, dk, dv), grads):
            assert into.is_contiguous()
            into.copy_(grad.transpose(1, 2))
        return torch.zeros(0)

    return compute, write


def fake_flash2_new(monkeypatch):
    compute, write = _flash2(4)

    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        return_softmax,
    ):  # fmt: skip
        assert (window_size_left, window_size_right, dropout_p) == (-1, -1, 0.0)
        return compute(q, k, v, softmax_scale, causal, softcap, alibi_slopes)

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        assert not deterministic
        return write(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal, softcap, alibi_slopes)

    return _install(monkeypatch, _libraries.Flash2(), _flash_attn_forward, _flash_attn_backward)


def fake_flash2_old(monkeypatch):
    compute, write = _flash2(8)

    def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_softmax):
        assert window_size == (-1, -1)
        return compute(q, k, v, softmax_scale, causal, 0.0, alibi_slopes)

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size, alibi_slopes,
        deterministic, rng_state=None,
    ):  # fmt: skip
        return write(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal, 0.0, alibi_slopes)

    return _install(monkeypatch, _libraries.Flash2(), _flash_attn_forward, _flash_attn_backward)


def fake_flash3(monkeypatch):
    compute, write = _flash2(4)

    def _flash_attn_forward(
        q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, softmax_scale=None, causal=False,
        window_size_left=-1, window_size_right=-1, attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
    ):  # fmt: skip
        assert out_ is None and cu_seqlens_q is None
        return compute(q, k, v, softmax_scale, causal, softcap)

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k,
        dq, dk, dv, softmax_scale, is_causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
        deterministic=False, sm_margin=0,
    ):  # fmt: skip
        assert cu_seqlens_q is None and max_seqlen_k is None
        return write(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, is_causal, softcap)

    return _install(monkeypatch, _libraries.Flash3(), _flash_attn_forward, _flash_attn_backward)


def _install(monkeypatch, library, forward, backward):
    module = types.ModuleType(library.module)
    module._flash_attn_forward, module._flash_attn_backward = forward, backward
    for part in {library.module, library.module.split(".")[0]}:
        monkeypatch.setitem(sys.modules, part, module)
    return library


FAKES = [fake_cudnn, fake_flash, fake_efficient, fake_flash2_new, fake_flash2_old, fake_flash3]


def counted(monkeypatch, library):
    """It computes on CPU tensors, before PyTorch's operations; gives how often."""
    monkeypatch.setattr(library, "device", "cpu")
    calls = {"forward": 0, "backward": 0}
    for name in calls:
        original = getattr(library, name)

        def call(*args, original=original, name=name):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(library, name, call)
    monkeypatch.setattr(_kernels, "_list", lambda kind, capability: [library, Blocks()])
    return calls


def exact_to_rounding(times, layout, dim=16, softcap=0.0, alibi_slopes=None, **options):
    """A ring of four in 16 bits, against the whole in 64."""
    q, k, v, dout = inputs(dim=dim, dtype=HALF)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted, lse = dense(*whole, times, softcap, alibi_slopes)
    wanted.backward(dout.double())
    ring = ra.VirtualRing(4)
    full = [x.clone().requires_grad_() for x in (q, k, v)]
    shards = [ring.shard(x, layout=layout) for x in full]
    outs, lses = ring.attention(
        *shards, layout=layout, return_lse=True, softcap=softcap, alibi_slopes=alibi_slopes, **options
    )
    out = ring.unshard(outs, layout=layout)
    out.backward(dout)
    assert error(out.detach(), wanted.detach()) <= 4e-3
    own = ring.unshard(lses, layout=layout, axis=2)
    assert torch.allclose(own.double(), lse, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(full, whole):
        assert error(mine.grad, theirs.grad) <= 8e-3


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("dim", [16, 20])
def test_rings_of_each_library_are_exact_to_its_rounding(monkeypatch, fake, dim):
    calls = counted(monkeypatch, fake(monkeypatch))
    exact_to_rounding(causal(), "zigzag", dim, causal=True)
    assert calls["forward"] >= 12 and calls["backward"] >= 12


@pytest.mark.parametrize("fake", FAKES)
def test_softcap_goes_to_a_library_that_has_it(monkeypatch, fake):
    library = fake(monkeypatch)
    calls = counted(monkeypatch, library)
    exact_to_rounding(causal(), "zigzag", causal=True, softcap=1.5)
    has = fake in (fake_flash2_new, fake_flash3)
    assert (library.lacks(Scores(1.5, None)) is None) == has
    assert calls["forward"] == calls["backward"] and (calls["forward"] >= 12) == has


@pytest.mark.parametrize("fake", FAKES)
def test_alibi_goes_to_a_library_where_its_distances_are_those_of_the_sequence(monkeypatch, fake):
    library = fake(monkeypatch)
    calls = counted(monkeypatch, library)
    has = fake in (fake_flash2_new, fake_flash2_old)
    assert (library.lacks(Scores(0.0, torch.ones(1, 4))) is None) == has

    def computed(*arguments, **options):
        calls.update(forward=0, backward=0)
        exact_to_rounding(*arguments, alibi_slopes=OF_EACH, **options)
        assert calls["forward"] == calls["backward"]
        return calls["forward"]

    every = torch.ones(1, LENGTH, LENGTH)
    assert computed(causal(), "striped", causal=True) >= 16 * has  # all of it: squares that are off by less than a step
    assert computed(causal(), "zigzag", causal=True) == 7 * has  # the squares at home; those of the last rank are one
    assert computed(every, "contiguous") == 4 * has
    assert computed(causal(), "contiguous", causal=True, ulysses_degree=4) == 4 * has
    if fake is fake_flash2_new:
        exact_to_rounding(causal(), "striped", causal=True, softcap=2.0, alibi_slopes=SLOPES)


def test_a_gradient_of_the_log_sum_exp_goes_to_a_kernel_that_takes_it(monkeypatch):
    library = fake_flash(monkeypatch)
    monkeypatch.setattr(library, "device", "cpu")
    monkeypatch.setattr(_kernels, "_list", lambda kind, capability: [library, Blocks()])
    monkeypatch.setattr(library, "backward", lambda *_: pytest.fail("it drops the gradient of the log-sum-exp"))
    q, k, v, _ = (x.to(HALF) for x in inputs(length=32))
    ring = ra.VirtualRing(2)
    shards = [[x.requires_grad_() for x in ring.shard(full)] for full in (q, k, v)]
    _, lses = ring.attention(*shards, return_lse=True)
    sum(lse.sum() for lse in lses).backward()
    assert all(x.grad.abs().sum() > 0 for x in shards[0] + shards[1])


@pytest.mark.parametrize("library", [_libraries.Cudnn, _libraries.Flash, _libraries.Efficient])
@pytest.mark.parametrize("dim", [64, 20])
def test_pytorchs_descriptions_of_its_operators_take_the_same_calls(library, dim):
    q, out = (torch.empty((2, 45, 4, dim), dtype=HALF, device="meta") for _ in range(2))
    k = torch.empty((2, 77, 2, dim), dtype=HALF, device="meta")
    for is_causal in (False, True):
        keys = k[:, :45] if is_causal else k
        result, lse = library().forward(q, keys, keys, 0.1, is_causal)
        assert result.shape == q.shape and lse.shape == (2, 4, 45) and lse.dtype == torch.float32
        dq, dk, dv = library().backward(out, q, keys, keys, out, lse, 0.1, is_causal)
        assert (dq.shape, dk.shape, dv.shape) == (q.shape, keys.shape, keys.shape)


def test_log_sum_exps_of_any_library_become_one_form():
    natural = _libraries.natural
    right = torch.randn(2, 3, 5)
    assert torch.equal(natural(right.unsqueeze(-1), 2, 3, 5), right)
    assert torch.equal(natural(torch.nn.functional.pad(right, (0, 27), value=7.0), 2, 3, 5), right)
    empty = right.clone()
    empty[0, 0, 0] = torch.inf
    assert natural(empty, 2, 3, 5)[0, 0, 0] == -torch.inf
    for wrong in (right.transpose(1, 2), right[:, :, :4], right.bfloat16(), right[0]):
        with pytest.raises(RuntimeError, match="log-sum-exp"):
            natural(wrong, 2, 3, 5)


def test_which_kernel_serves_a_gpu_is_said_with_what_refuses_the_others():
    name, why = ra.kernel_for("bfloat16", 128, device="cuda")
    assert name == "cudnn" or "cudnn" in why  # as this machine has it
    name, why = ra.kernel_for("float32", 64, device="cuda")
    assert name in ("efficient", "torch") and "cudnn takes no float32" in why
    name, why = ra.kernel_for(torch.bfloat16, 200, device="cuda")
    assert "cudnn takes head_dim up to 128" in why
    ra.use_kernel("torch", device="cuda")
    assert ra.kernel_for("bfloat16", 128, device="cuda").why.endswith("asked for by name")
    ra.use_kernel("flash3", device="cuda")
    chosen = ra.kernel_for("bfloat16", 128, device="cuda")
    assert chosen.name == "flash3" or "flash_attn_interface cannot be used" in chosen.why
    ra.use_kernel(device="cuda")


def test_a_version_with_other_arguments_is_refused_and_not_guessed():
    with pytest.raises(RuntimeError, match="other arguments"):
        _libraries._arguments({"query": False, "key": False}, {"q": 1, "k": 2}, 1.0, True)


def test_the_program_for_machines_with_a_gpu_is_whole(capsys):
    options = argparse.Namespace(device="cpu", tokens=128, ranks=4, heads=(4, 2, 64))
    assert gpu_attention.exact(options) == 0
    _kernels.use_kernel("cpu", device="cpu")
    try:
        assert gpu_attention.speed(options) == 0 and gpu_attention.ring(options) == 0
    finally:
        _kernels.use_kernel("auto", device="cpu")
    printed = capsys.readouterr().out
    assert "right: torch float32" in printed and "cpu: 4 virtual ranks of 128 tokens" in printed
