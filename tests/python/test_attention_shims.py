"""Call sites in the style of ring-flash-attention, DeepSpeed and yunchang run on rueda."""

import rueda.attention as ra
import rueda.torch as hvd
import torch
from attention_oracle import LENGTH, causal, dense, error, inputs
from expect import raises
from worlds import ranks

WORLD = "torch"


def expect_parts(got, wanted, cut, tolerance=2e-6):
    for mine, whole in zip(got, wanted):
        assert error(mine, cut(whole)) <= tolerance


def exact(times, **shape):
    """(inputs, output and gradients in float64) of attention over the whole."""
    *qkv, dout = inputs(**shape)
    whole = [x.double().requires_grad_() for x in qkv]
    wanted, lse = dense(*whole, times)
    wanted.backward(dout.double())
    return (*qkv, dout), [wanted.detach(), *(x.grad for x in whole)], lse.detach()


@ranks(2)
def test_ring_flash_attention():
    from rueda.compat import ring_flash_attn as rfa

    (q, k, v, dout), wanted, _ = exact(causal(), kv_heads=4)
    for name, layout in (("zigzag_ring", "zigzag"), ("stripe", "striped"), ("ring", "contiguous")):
        def cut(x, layout=layout):
            return ra.shard_sequence(x, layout=layout)

        qkv = torch.stack([cut(x) for x in (q, k, v)], 2).requires_grad_()
        out, lse, _ = getattr(rfa, f"{name}_flash_attn_qkvpacked_func")(
            qkv, dropout_p=0, causal=True, window_size=(-1, -1), alibi_slopes=None,
            deterministic=False, return_attn_probs=True,
        )  # fmt: skip
        assert lse.shape == (2, 4, out.shape[1])
        out.backward(cut(dout))
        expect_parts([out.detach(), *qkv.grad.unbind(2)], wanted, cut)
        packed = getattr(rfa, f"{name}_flash_attn_kvpacked_func")
        again = packed(qkv[:, :, 0], qkv[:, :, 1:], causal=True)
        assert torch.equal(again, out)
        with raises(NotImplementedError, "dropout"):
            packed(qkv[:, :, 0], qkv[:, :, 1:], 0.1)


def packed_mask(ends):
    t = torch.arange(ends[-1])
    which = torch.bucketize(t, torch.tensor(ends[1:]), right=True)
    return ((which[:, None] == which) & (t[:, None] >= t)).float()[None]


@ranks(2)
def test_ring_flash_attention_of_packed_sequences():
    from rueda.compat import ring_flash_attn as rfa

    rank, world_size = hvd.rank(), hvd.size()
    cu_seqlens = [0, 8, 40, 64]
    tensor = torch.tensor(cu_seqlens, dtype=torch.int32)
    (q, k, v, dout), wanted, lse = exact(
        packed_mask(cu_seqlens), kv_heads=4, batch=1, length=cu_seqlens[-1]
    )
    wanted = [x[0] for x in wanted]

    def extract_local(value, cut):
        pieces = [cut(value[a:b]) for a, b in zip(cu_seqlens, cu_seqlens[1:])]
        return torch.cat([x for piece in pieces for x in piece])

    def zigzag(sequence):
        chunks = sequence.chunk(2 * world_size)
        return chunks[rank], chunks[2 * world_size - 1 - rank]

    cuts = {
        "zigzag_ring": zigzag,
        "ring": lambda sequence: [sequence.chunk(world_size)[rank]],
        "stripe": lambda sequence: [sequence[rank::world_size]],
    }
    for name, cut in cuts.items():
        qkv = torch.stack([extract_local(x[0], cut) for x in (q, k, v)], 1).requires_grad_()
        out, own_lse, _ = getattr(rfa, f"{name}_flash_attn_varlen_qkvpacked_func")(
            qkv, tensor // world_size, 16, dropout_p=0, causal=True, window_size=(-1, -1),
            alibi_slopes=None, deterministic=False, return_attn_probs=True,
        )  # fmt: skip
        out.backward(extract_local(dout[0], cut))
        expect_parts([out.detach(), *qkv.grad.unbind(1)], wanted, lambda x: extract_local(x, cut))
        assert error(own_lse, extract_local(lse[0].T, cut).T) <= 2e-6
    # llama3: the packed tokens are cut into equal parts, wherever sequences end.
    own = slice(rank * 32, (rank + 1) * 32)
    q, k, v = (x[0, own].clone().requires_grad_() for x in (q, k, v))
    told = rfa.llama3_flash_attn_prepare_cu_seqlens(tensor, causal=True, rank=rank, world_size=world_size)
    cu_q, cu_k, max_q, max_k, local_k_slice = told
    assert (cu_q.tolist(), cu_k.tolist()) == (
        ([0, 8, 32], [0, 8, 32]) if rank == 0 else ([0, 8, 32], [0, 32, 56])
    )
    assert (max_q, max_k, local_k_slice) == ((24, 24, slice(0, 32)), (24, 32, slice(8, 64)))[rank]
    out = rfa.llama3_flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=max_q, max_seqlen_k=max_k,
        heads_k_stride=1, local_k_slice=local_k_slice, causal=True,
    )  # fmt: skip
    out.backward(dout[0, own])
    expect_parts([out.detach(), q.grad, k.grad, v.grad], wanted, lambda x: x[own])


@ranks(3)
def test_deepspeed():
    from rueda.compat.deepspeed import DistributedAttention

    def core_attention(query, key, value, mask=None):
        """Tokens first, as Megatron has it; returns (tokens, batch, heads * head_dim)."""
        assert mask is not None
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)

    for heads in (6, 4, 2):  # two models of different heads in one process, and fewer heads than ranks
        (q, k, v, dout), wanted, _ = exact(causal(), heads=heads, kv_heads=heads)
        attention = DistributedAttention(core_attention, None, scatter_idx=2, gather_idx=0)

        def cut(x):
            return ra.shard_sequence(x.transpose(0, 1), axis=0)

        for call in (lambda *x: attention(*x, 1, mask="mask"), lambda *x: attention(*x, "mask")):
            own = [cut(x).requires_grad_() for x in (q, k, v)]
            out = call(*own)
            assert out.dim() == 3
            out = out.unflatten(-1, (heads, -1))
            out.backward(cut(dout))
            expect_parts([out.detach(), *(x.grad for x in own)], wanted, cut)

    def rotated(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    # Batch first, rotary embeddings inside: (tokens, 1, 1, head_dim).
    q, k, v, _ = inputs(kv_heads=4)
    angle = torch.arange(LENGTH)[:, None, None, None] * torch.linspace(0.1, 1, 16)
    rotary = angle.cos(), angle.sin()
    across = [x.permute(1, 0, 2, 3) for x in rotary]
    wanted, _ = dense(rotated(q, *across), rotated(k, *across), v, torch.ones(1, LENGTH, LENGTH))

    def local(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    attention = DistributedAttention(local, hvd.global_process_set, scatter_idx=2, gather_idx=1)
    own = [ra.shard_sequence(x) for x in (q, k, v)]
    out = attention(*own, batch_dim_idx=0, rotary_pos_emb=rotary)
    assert error(out, ra.shard_sequence(wanted)) <= 2e-6


@ranks(4)
def test_yunchang():
    from rueda.compat.yunchang import (
        EXTRACT_FUNC_DICT,
        AttnType,
        LongContextAttention,
        LongContextAttentionQKVPacked,
        UlyssesAttention,
        set_seq_parallel_pg,
    )

    rank, world_size = hvd.rank(), hvd.size()
    (q, k, v, dout), wanted, _ = exact(causal(48), length=48)
    for ulysses_degree, ring_degree, low in ((2, 2, True), (2, 2, False), (4, 1, True), (1, 4, True)):
        set_seq_parallel_pg(ulysses_degree, ring_degree, rank, world_size, use_ulysses_low=low)
        if not low:
            continue  # the extract functions are for Ulysses groups of neighbours
        for ring_impl_type in ("basic", "zigzag", "strip"):
            if ring_impl_type == "basic":
                def cut(x):
                    return EXTRACT_FUNC_DICT["basic"](x, rank, world_size)
            else:
                def cut(x, name=ring_impl_type):
                    return EXTRACT_FUNC_DICT[name](
                        x, rank, world_size, rd=ring_degree, ud=ulysses_degree, dim=1
                    )

            attention = LongContextAttention(
                scatter_idx=2, gather_idx=1, ring_impl_type=ring_impl_type, attn_type=AttnType.FA
            )
            own = [cut(x).requires_grad_() for x in (q, k, v)]
            out = attention(
                *own, dropout_p=0, causal=True, window_size=(-1, -1), alibi_slopes=None,
                deterministic=False, return_attn_probs=True,
            )  # fmt: skip
            out.backward(cut(dout))
            expect_parts([out.detach(), *(x.grad for x in own)], wanted, cut)
    # Their zigzag, from its definition.
    set_seq_parallel_pg(2, 2, rank, world_size)
    chunks = torch.arange(48)[None, :, None, None].chunk(4, 1)
    ring, place = divmod(rank, 2)
    mine = torch.cat([chunks[ring], chunks[3 - ring]], 1).chunk(2, 1)[place]
    extract = EXTRACT_FUNC_DICT["zigzag"]
    assert torch.equal(extract(torch.arange(48)[None, :, None, None], rank, 4, rd=2, ud=2), mine)
    # Packed, with as many key/value heads as query heads; no length or head count divides the ranks.
    (q, k, v, dout), wanted, _ = exact(causal(), heads=3, kv_heads=3)

    def cut(x):
        return extract(x, rank, world_size, rd=2, ud=2)

    qkv = torch.stack([cut(x) for x in (q, k, v)], 2).requires_grad_()
    out = LongContextAttentionQKVPacked(ring_impl_type="zigzag")(qkv, causal=True)
    out.backward(cut(dout))
    expect_parts([out.detach(), *qkv.grad.unbind(2)], wanted, cut)
    own = [ra.shard_sequence(x).requires_grad_() for x in (q, k, v)]
    out = UlyssesAttention()(*own, causal=True)
    out.backward(ra.shard_sequence(dout))
    expect_parts([out.detach(), *(x.grad for x in own)], wanted, ra.shard_sequence)


class _Transformers:
    """A neutral contribution with the two places where transformers lets attention be put in."""

    def __init__(self):
        import types

        self.flash = types.ModuleType("transformers.modeling_flash_attention_utils")
        self.flash._flash_attention_forward = lambda *args, **kwargs: None
        self.utils = types.ModuleType("transformers.modeling_utils")
        self.utils.ALL_ATTENTION_FUNCTIONS = {}
        self.modules = {
            "transformers": types.ModuleType("transformers"),
            self.flash.__name__: self.flash,
            self.utils.__name__: self.utils,
        }


@ranks(2)
def test_models_of_transformers_compute_with_the_ring():
    import sys
    import types

    from rueda.compat.ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params

    try:
        import transformers  # noqa: F401
    except ImportError:
        with raises(ImportError, "transformers"):
            substitute_hf_flash_attn(None, 1)
    neutral = _Transformers()
    sys.modules.update(neutral.modules)
    substitute_hf_flash_attn(hvd.global_process_set, heads_k_stride=1)
    ends = torch.tensor([0, 8, 40, 64], dtype=torch.int32)
    (q, k, v, dout), wanted, _ = exact(packed_mask(ends.tolist()), batch=1, length=64)
    update_ring_flash_attn_params(ends, hvd.global_process_set)

    def cut(x):
        return ra.shard_sequence(x)

    own = [cut(x).requires_grad_() for x in (q, k, v)]
    # As LlamaAttention of 4.48 and newer calls it.
    layer = types.SimpleNamespace(is_causal=True)
    attend = neutral.utils.ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
    out, weights = attend(
        layer, *(x.transpose(1, 2) for x in own), None, dropout=0.0, scaling=16**-0.5,
        sliding_window=None, position_ids=None, use_cache=False,
    )  # fmt: skip
    out.backward(cut(dout))
    assert weights is None
    expect_parts([out.detach(), *(x.grad for x in own)], wanted, cut)
    # As LlamaFlashAttention2 of older releases does.
    older = neutral.flash._flash_attention_forward(
        *own, None, own[0].shape[1], position_ids=None, dropout=0.0, sliding_window=None,
        use_top_left_mask=False, is_causal=True,
    )  # fmt: skip
    assert torch.equal(older, out)
    # Without packed sequences each row is one; a window of 9 tokens.
    update_ring_flash_attn_params(None)
    (q, k, v, _), wanted, _ = exact(causal(64) * torch.triu(torch.ones(64, 64), -8), length=64)
    heads_first = [cut(x).transpose(1, 2) for x in (q, k, v)]
    out, _ = attend(layer, *heads_first, None, scaling=None, sliding_window=9)
    expect_parts([out], wanted[:1], cut)
    # As models with sinks call it, GPT-OSS among them.
    sinks = torch.tensor([0.5, -2.0, 3.0, 9.0])
    out, _ = attend(layer, *heads_first, None, scaling=None, sliding_window=9, s_aux=sinks)
    own = [x.transpose(1, 2) for x in heads_first]
    assert torch.equal(out, ra.ring_attention(*own, causal=True, window_size=(8, 0), sinks=sinks))
    with raises(NotImplementedError, "attention_dropout=0"):
        attend(layer, *heads_first, None, dropout=0.1)
    with raises(NotImplementedError, "pack the sequences"):
        attend(layer, *heads_first, torch.tensor([[0, 1]]))
    with raises(ValueError, "equal parts"):
        update_ring_flash_attn_params([0, 63])
    substitute_hf_flash_attn(None, 1, save="lse")
    with raises(ValueError, "save is 'lse'"):
        attend(layer, *heads_first, None)
    del neutral.flash._flash_attention_forward, neutral.utils.ALL_ATTENTION_FUNCTIONS
    with raises(ValueError, "4.40 or newer"):
        substitute_hf_flash_attn(None, 1)
    for name in neutral.modules:
        del sys.modules[name]
