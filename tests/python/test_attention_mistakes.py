"""Wrong calls of attention: each is an error that says what to do, never a wrong number. Without a job."""

import numpy as np
import pytest
import rueda.attention as ra
import torch
from attention_oracle import dense, error
from rueda.attention import _groups

N = 12


def qkv(**changes):
    shapes = {"q": (1, N, 4, 8), "k": (1, N, 2, 8), "v": (1, N, 2, 8), **changes}
    return [torch.randn(shape) for shape in shapes.values()]


def attend(q, k, v, **options):
    return ra.ring_attention(q, k, v, **{"process_set": _groups.local, **options})


MASK = ra.BlockMask.local_window(N, 4, 4)
WRONG_TENSORS = {
    "must be (batch, tokens, heads, head_dim), got 3": lambda q, k, v: (q[0], k, v),
    "shapes do not fit": lambda q, k, v: (q, k, v[:, 1:]),
    "have q's batch and head_dim": lambda q, k, v: (q, k[..., :4], v[..., :4]),
    "no multiple of": lambda q, k, v: (q[:, :, :3], k, v),
    "no multiple of 0": lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]),
    "1 to 256 are supported": lambda q, k, v: [x.repeat(1, 1, 1, 33) for x in (q, k, v)],
    "head_dim is 0": lambda q, k, v: [x[..., :0] for x in (q, k, v)],
    "different dtypes": lambda q, k, v: (q, k.half(), v.half()),
    "'float64', expected one of": lambda q, k, v: [x.double() for x in (q, k, v)],
    "'int64', expected one of": lambda q, k, v: [x.long() for x in (q, k, v)],
    "of different frameworks": lambda q, k, v: (q, k.numpy(), v.numpy()),
    "different devices": lambda q, k, v: (q.to("meta"), k, v),
    "use .cpu()": lambda q, k, v: [x.to("meta") for x in (q, k, v)],
    "an empty sequence or batch": lambda q, k, v: [x[:, :0] for x in (q, k, v)],
    "expected an array of NumPy or JAX or a PyTorch tensor, got list": lambda q, k, v: (q.tolist(), k, v),
}
WRONG_OPTIONS = {
    "expected one of 'contiguous'": {"layout": "zickzack"},
    "expected (left, right)": {"window_size": 5},
    "window_size is (1, 2, 3)": {"window_size": (1, 2, 3)},
    "leave it out": {"softmax_scale": 0},
    "not finite": {"softmax_scale": float("nan")},
    "chunk_tokens is negative": {"chunk_tokens": -1},
    "rotate is 'left'": {"rotate": "left"},
    "compression is 'int4'": {"compression": "int4"},
    "use shard_sequence": {"length": N + 1},
    "gives it 9": {"key_length": 9},
    "expected 'bshd' or 'bhsd'": {"qkv_format": "sbhd"},
    "expected a ProcessSet": {"process_set": 0},
    "does not divide 1": {"ulysses": 2},
    "an entry of window_size is 3.5, expected an integer": {"window_size": (3.5, 0)},
    "an entry of window_size is None, expected": {"window_size": (None, None)},
    "more than 64 bits hold": {"window_size": (1 << 64, 0)},
    "length is 12.5, expected an integer": {"length": 12.5},
    "chunk_tokens is 2.5, expected an integer": {"chunk_tokens": 2.5},
    "threads is -1": {"threads": -1},
    "softcap is -1": {"softcap": -1},
    "softcap is inf": {"softcap": float("inf")},
    "alibi_slopes has 3 numbers, expected (4,)": {"alibi_slopes": [1, 2, 3]},
    "or (1, 4)": {"alibi_slopes": torch.zeros(2, 4)},
    "an ALiBi slope is not finite": {"alibi_slopes": np.full(4, np.nan)},
    "threads is 1.5": {"threads": 1.5},
}


@pytest.mark.parametrize("message", WRONG_TENSORS)
def test_wrong_tensors_are_told_what_to_do(message):
    with pytest.raises(ValueError) as caught:
        attend(*WRONG_TENSORS[message](*qkv()))
    assert message in str(caught.value)


@pytest.mark.parametrize("message", WRONG_OPTIONS)
def test_wrong_options_are_told_what_to_do(message):
    with pytest.raises(ValueError) as caught:
        attend(*qkv(), **WRONG_OPTIONS[message])
    assert message in str(caught.value)


CALLS = {
    "attention has no option 'dropout_p'": lambda q, k, v: attend(q, k, v, dropout_p=0.1),
    "attention has no option 'heads'": lambda q, k, v: attend(q, k, v, heads=2),
    "ring_attention has rotate='q'": lambda q, k, v: ra.all_gather_attention(q, k, v, rotate="q"),
    "ulysses_attention has none": lambda q, k, v: ra.ulysses_attention(
        q, k, v, compression="int8", process_set=_groups.local
    ),
    "block_mask is a Tensor": lambda q, k, v: ra.block_sparse_attention(q, k, v, torch.ones(3, 3)),
    "no query would see a key": lambda q, k, v: ra.dilated_attention(q, k, v, [], []),
    "more than 2^30": lambda q, k, v: ra.dilated_attention(q, k, v, [4], [1 << 40]),
    "they are pairs": lambda q, k, v: ra.dilated_attention(q, k, v, [4, 8], [1]),
    "are lists": lambda q, k, v: ra.dilated_attention(q, k, v, 4, 1),
    "must be positive": lambda q, k, v: ra.dilated_attention(q, k, v, [4], [0]),
    "needs a KV head for each": lambda q, k, v: ra.dilated_attention(
        q, k, v, [4, 8, 12], [1, 2, 3], head_groups="split"
    ),
    "has 3 x 3 blocks, got 2 x 2": lambda q, k, v: ra.BlockMask(np.ones((2, 2)), N, 4),
    "needs tokens and a block size": lambda q, k, v: ra.BlockMask.local_window(N, 0, 4),
    "density is 2": lambda q, k, v: ra.BlockMask.random(N, 4, 2),
    "needs a density": lambda q, k, v: ra.BlockMask.pattern("random", N, 4),
    "expected one of local_window": lambda q, k, v: ra.BlockMask.pattern("adaptive", N, 4),
    "layout of 12 tokens gives it 12": lambda q, k, v: ra.block_sparse_attention(
        *(x[:, 1:] for x in (q, k, v)), MASK
    ),
    "cu_seqlens must rise": lambda q, k, v: ra.ring_attention_varlen(
        q[0], k[0], v[0], [0, 9, 5, N], process_set=_groups.local
    ),
    "cu_seqlens_q is []": lambda q, k, v: ra.ring_attention_varlen(q[0], k[0], v[0], []),
    "cu_seqlens_k is []": lambda q, k, v: ra.ring_attention_varlen(q[0], k[0], v[0], [0, N], []),
    "packed q, k, v must be": lambda q, k, v: ra.ring_attention_varlen(q, k, v, [0, N]),
    "cu_seqlens end at 12: leave length out": lambda q, k, v: ra.ring_attention_varlen(
        q[0], k[0], v[0], [0, N], length=N + 1
    ),
    "cu_seqlens end at 12: leave key_length out": lambda q, k, v: ra.ring_attention_varlen(
        q[0], k[0], v[0], [0, N], [0, N], key_length=5
    ),
    "takes no async_op": lambda q, k, v: ra.ring_attention_varlen(
        q[0], k[0], v[0], [0, N], async_op=True
    ),
    "local_attention is 'flash'": lambda q, k, v: ra.ulysses_attention(
        q, k, v, local_attention="flash", process_set=_groups.local
    ),
    "leave it out for NumPy": lambda q, k, v: ra.ulysses_attention(
        *(x.numpy() for x in (q, k, v)), local_attention=len, process_set=_groups.local
    ),
    "got 3, 3 and 3 dimensions": lambda q, k, v: ra.ulysses_attention(
        q[0], k[0], v[0], local_attention=len, process_set=_groups.local
    ),
    "local_attention gave NoneType": lambda q, k, v: ra.ulysses_attention(
        q, k, v, local_attention=lambda q, k, v: None, process_set=_groups.local
    ),
    "local_attention gave (1, 3, 4, 8), expected a tensor (1, 12, 4, 8)": lambda q, k, v: ra.ulysses_attention(
        q, k, v, local_attention=lambda q, k, v: q[:, :3], process_set=_groups.local
    ),
    "axis 5 of a tensor of 4 dimensions": lambda q, k, v: ra.shard_sequence(q, axis=5, process_set=_groups.local),
    "axis 1 of a tensor of 0": lambda q, k, v: ra.unshard_sequence(q.sum(), process_set=_groups.local),
    "needs length": lambda q, k, v: ra.position_ids(process_set=_groups.local),
    "results do not fit": lambda q, k, v: ra.merge_attention(q, q[..., 0], q, q[..., 0]),
    "give the layout and length": lambda q, k, v: ra.unshard_sequence(
        q, length=5, process_set=_TwoRanks()
    ),
}


class _TwoRanks(type(_groups.local)):
    def size(self):
        return 2


@pytest.mark.parametrize("message", CALLS)
def test_wrong_calls_are_told_what_to_do(message):
    with pytest.raises((ValueError, TypeError)) as caught:
        CALLS[message](*qkv())
    assert message in str(caught.value)


def test_packed_sequences_may_say_their_length():
    q, k, v = (x[0] for x in qkv())
    options = {"process_set": _groups.local, "causal": True}
    plain = ra.ring_attention_varlen(q, k, v, [0, 5, N], **options)
    assert torch.equal(ra.ring_attention_varlen(q, k, v, [0, 5, N], length=N, key_length=N, **options), plain)


def test_any_memory_layout_and_any_mixture_of_gradients():
    """Strides, views, expanded and broadcast tensors; gradients for some of q, k, v."""
    everything = torch.ones(1, N, N)
    q, k, v = qkv()
    made = {
        "transposed": [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)],
        "every other": [x.repeat_interleave(2, 1)[:, ::2] for x in (q, k, v)],
        "flipped": [x.flip(1).flip(1) for x in (q, k, v)],
        "expanded": [q, k[:, :, :1].expand(-1, -1, 2, -1), v[:, :1].expand(-1, N, -1, -1)],
    }
    for name, own in made.items():
        wanted, _ = dense(*own, everything)
        assert error(attend(*own), wanted) <= 1e-6, name
    for needed in ((0,), (1,), (2,), (0, 2)):
        whole = [x.double().requires_grad_(i in needed) for i, x in enumerate((q, k, v))]
        own = [x.clone().requires_grad_(i in needed) for i, x in enumerate((q, k, v))]
        dense(*whole, everything)[0].sum(-1).square().sum().backward()
        attend(*own).sum(-1).square().sum().backward()
        for i in range(3):
            assert (own[i].grad is None) == (i not in needed)
            assert i not in needed or error(own[i].grad, whole[i].grad) <= 5e-6
    with pytest.raises(RuntimeError, match="rueda: attention has no second derivatives.*leave out create_graph"):
        x = q.clone().requires_grad_()
        (grad,) = torch.autograd.grad(attend(x, k, v).square().sum(), x, create_graph=True)
        grad.sum().backward()
    x = q.clone().requires_grad_()
    doubled = x * 2
    out = attend(doubled, k, v)
    doubled.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("kernel", ["auto", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_number_that_is_none_is_not_hidden(dtype, kernel):
    """NaN and infinity come out wherever PyTorch's attention lets them out, in results and gradients."""

    def spoilt(x):
        return x.isfinite().logical_not()

    ra.use_kernel(kernel)
    try:
        for tokens in (5, 70, 300):
            for which in range(3):
                for value in (torch.nan, torch.inf):
                    own = [torch.randn(1, tokens, 2, 32).to(dtype) for _ in range(3)]
                    own[which][0, tokens // 2, 1, 3] = value
                    # A query whose scores are all -infinity sees no key (docs/attention.md), so let one of them be +infinity.
                    own[1][0, 0, 1, 3] = own[1][0, 0, 1, 3].abs()
                    whole = [x.float().transpose(1, 2).requires_grad_() for x in own]
                    own = [x.requires_grad_() for x in own]
                    scores = torch.softmax(whole[0] @ whole[1].mT * 32**-0.5, -1)
                    wanted = (scores @ whole[2]).transpose(1, 2)
                    out = attend(*own)
                    where = f"{tokens} tokens, {'qkv'[which]} has {value}"
                    assert not (spoilt(wanted) & ~spoilt(out)).any(), where
                    wanted.sum().backward()
                    out.float().sum().backward()
                    for name, mine, theirs in zip("qkv", own, whole):
                        lost = spoilt(theirs.grad.transpose(1, 2)) & ~spoilt(mine.grad)
                        assert not lost.any(), f"{where}: the gradient of {name}"
    finally:
        ra.use_kernel("auto")


def test_plans_and_modules_say_what_they_are():
    plan = ra.AttentionPlan(rank=1, ranks=2, length=33, heads=2, head_dim=8, layout="zigzag")
    assert repr(plan).startswith("AttentionPlan(16 of 33 tokens, zigzag: ")
    layer = ra.DilatedAttention([8, 16], [1, 2], causal=True)
    assert "causal=True, layout='contiguous', segment_lengths=(8, 16), dilation_rates=(1, 2)" in repr(layer)
