"""The functions on arrays and tensors; `rueda.attention` describes what they have in common."""

from rueda.attention import _groups
from rueda.attention._attend import attend, framework, require_alike
from rueda.attention._blocks import BlockMask
from rueda.attention._layouts import places
from rueda.attention._lengths import length_of

# Classes of `rueda.attention.modules`, which is PyTorch's and imported when one is asked for.
MODULES = (
    "BlockSparseRingDilatedAttention",
    "BlockSparseRingDistributedDilatedAttention",
    "DilatedAttention",
    "DistributedImprovedMultiheadDilatedAttention",
    "DistributedMultiheadDilatedAttention",
    "MultiheadDilatedAttention",
    "RingAttention",
    "RingDilatedAttention",
    "RingDilatedAttentionProduction",
    "RingDistributedDilatedAttention",
    "UlyssesAttention",
)


def ring_attention(q, k, v, *, causal=False, layout="contiguous", **options):
    """Exact attention; keys and values (or queries: ``rotate``) travel around the ranks.

    Parameters
    ----------
    q, k, v : array or tensor
        (batch, tokens of this rank, heads, head_dim).
    layout : {"contiguous", "zigzag", "striped"}
        How the tokens are spread. With ``causal`` zigzag and striped give all ranks equal work.
    **options
        ``rotate`` ("auto", "kv", "q"): what travels; automatic is what takes fewer bytes, for
        forward and backward by themselves. ``compression`` (None, "bfloat16", "int8") of keys and
        values that travel. "bfloat16" (of float32): half the bytes, relative error of each 2^-9.
        "int8": head_dim + 4 bytes for each head and token, each element off by at most 1/254 of
        the largest of its head. Gradients travel in float32. And the common keywords; see the
        module.
    """
    return attend(q, k, v, causal=causal, layout=layout, **options)


def ring_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k=None, max_seqlen_q=None,
                          max_seqlen_k=None, *, causal=False, layout="striped", layout_of="whole",
                          **options):  # fmt: skip
    """Packed sequences: q, k, v are (tokens of this rank, heads, head_dim).

    Parameters
    ----------
    cu_seqlens_q : sequence of int
        0, end of the first sequence, ..., end of the last, in tokens of all ranks.
    cu_seqlens_k : sequence of int, optional
        Of the keys, where they are others: as many sequences. ``causal`` and ``window_size`` are aligned at
        the end of each.
    max_seqlen_q, max_seqlen_k : int, optional
        Not needed.
    layout_of : {"whole", "sequence"}
        The layout spreads all tokens together, whatever sequence they are of, or each sequence by
        itself, as ring-flash-attention does. The striped layout of the whole balances any lengths.
    """
    ends = tuple(int(x) for x in cu_seqlens_q)
    of_keys = ends if cu_seqlens_k is None else tuple(int(x) for x in cu_seqlens_k)
    for name, given in (("cu_seqlens_q", ends), ("cu_seqlens_k", of_keys)):
        if len(given) < 2:
            raise ValueError(f"{name} is {list(given)}, expected 0, end of the first sequence, ..., all tokens")
    for name, known in (("length", ends), ("key_length", of_keys)):
        if options.pop(name, None) not in (None, known[-1]):
            raise ValueError(f"cu_seqlens end at {known[-1]}: leave {name} out")
    if of_keys != ends:
        options.update(cu_seqlens_k=of_keys, key_length=of_keys[-1])
    if layout_of not in ("whole", "sequence"):
        raise ValueError(f"layout_of is {layout_of!r}, expected 'whole' or 'sequence'")
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3:
        raise ValueError("packed q, k, v must be (tokens of this rank, heads, head_dim)")
    if options.get("async_op") or "qkv_format" in options:
        raise ValueError("ring_attention_varlen takes no async_op and no qkv_format")
    result = attend(
        q[None], k[None], v[None], causal=causal, layout=layout, cu_seqlens=ends, length=ends[-1],
        per_sequence=layout_of == "sequence", **options,
    )  # fmt: skip
    return tuple(x[0] for x in result) if isinstance(result, tuple) else result[0]


def all_gather_attention(q, k, v, *, causal=False, layout="contiguous", **options):
    """As `ring_attention`, but everything is received before computing: more memory, fewer waits."""
    if options.pop("rotate", "kv") not in ("auto", "kv"):
        raise ValueError("all_gather_attention gathers keys and values; ring_attention has rotate='q'")
    return attend(q, k, v, causal=causal, layout=layout, gather_first=True, rotate="kv", **options)


def ulysses_attention(q, k, v, *, causal=False, layout="contiguous", local_attention=None,
                      **options):  # fmt: skip
    """Exchanges heads for tokens, computes whole sequences, exchanges back. Any number of heads.

    ``local_attention(q, k, v)`` computes instead of rueda, on PyTorch tensors or JAX arrays of all
    tokens, in their order, and this rank's share of the heads; mask and scale are then its own affair.
    Of JAX's arrays the ranks must have as many heads and tokens each.
    """
    process_set = _groups.given(options.get("process_set"))
    if options.get("compression") is not None:
        raise ValueError("compression is of keys and values in a ring; ulysses_attention has none")
    if local_attention is None:
        ranks = process_set.size()
        return attend(q, k, v, causal=causal, layout=layout, ulysses=ranks, **options)
    if causal or set(options) - {"process_set", "length"}:
        raise ValueError("with local_attention, mask, scale and the like are given to it")
    require_alike(q, k, v)
    return framework(q).with_local_attention(
        q, k, v, local_attention, layout, process_set, options.get("length")
    )


def usp_attention(q, k, v, *, ulysses_degree=None, ring_degree=None, causal=False,
                  layout="contiguous", **options):  # fmt: skip
    """Ulysses among neighbouring ``ulysses_degree`` ranks, a ring across the groups.

    One of the degrees is enough: their product is the number of ranks.
    """
    ranks = _groups.given(options.get("process_set")).size()
    if ulysses_degree is None and ring_degree is None:
        raise ValueError("usp_attention needs ulysses_degree or ring_degree")
    if ring_degree is not None:
        given = ulysses_degree
        if ring_degree > 0 and ranks % ring_degree == 0:
            ulysses_degree = ranks // ring_degree
        if ring_degree < 1 or ranks % ring_degree or given not in (None, ulysses_degree):
            raise ValueError(
                f"ulysses_degree {given} and ring_degree {ring_degree}: their product must be the {ranks} ranks"
            )
    return attend(q, k, v, causal=causal, layout=layout, ulysses=ulysses_degree, **options)


def ring_dilated_attention(q, k, v, segment_lengths, dilation_rates, *, causal=False,
                           layout="contiguous", head_offset="mod", head_groups="all",
                           block_mask=None, mix_grad="exact", **options):  # fmt: skip
    """LongNet's dilated attention over all ranks: every head runs every (segment, rate) pair, and
    one softmax goes over all keys that they select.

    Parameters
    ----------
    segment_lengths, dilation_rates : sequences of int
        The pairs, in tokens.
    head_offset : {"mod", "block"}
        Head h of H takes the tokens with ``position % segment % rate`` equal to h mod rate (the
        paper), or to h * rate // H (torchscale).
    head_groups : {"all", "split"}
        "split": each pair has its own heads instead, as fkodom's package has it.
    block_mask : BlockMask, optional
        Keys that a pair selects are seen only where it allows them.
    mix_grad : {"exact", "detached"}
        "detached": the weights with which the pairs' results are mixed count as constants in
        backward, as torchscale has it; each pair is then a call of its own.
    """
    if head_groups not in ("all", "split"):
        raise ValueError(f"head_groups is {head_groups!r}, expected 'all' or 'split'")
    if not (hasattr(segment_lengths, "__len__") and hasattr(dilation_rates, "__len__")):
        raise ValueError("segment_lengths and dilation_rates are lists, one entry for each pair")
    if len(segment_lengths) != len(dilation_rates):
        raise ValueError(
            f"{len(segment_lengths)} segment lengths and {len(dilation_rates)} dilation rates: "
            "they are pairs"
        )
    if len(segment_lengths) == 0:
        raise ValueError("segment_lengths and dilation_rates are empty: no query would see a key")
    if mix_grad not in ("exact", "detached"):
        raise ValueError(f"mix_grad is {mix_grad!r}, expected 'exact' or 'detached'")
    mixes = head_groups == "all" and len(segment_lengths) > 1
    if mix_grad == "detached" and mixes and hasattr(framework(q), "mix_detached"):
        for name in ("async_op", "sinks"):
            if options.get(name) not in (None, False):
                raise ValueError(f"mix_grad='detached' is several calls: leave {name} out")
        want_lse = options.pop("return_lse", False)
        parts = [
            ring_dilated_attention(
                q, k, v, [w], [r], causal=causal, layout=layout, head_offset=head_offset,
                block_mask=block_mask, return_lse=True, **options,
            )
            for w, r in zip(segment_lengths, dilation_rates)
        ]  # fmt: skip
        out, lse = framework(q).mix_detached(*zip(*parts), options.get("qkv_format") == "bhsd")
        return (out, lse) if want_lse else out
    if block_mask is not None:
        options.update(_of_mask(block_mask))
    return attend(
        q, k, v, causal=causal, layout=layout, head_offset=head_offset,
        split_heads=head_groups == "split", segment_lengths=tuple(map(int, segment_lengths)),
        dilation_rates=tuple(map(int, dilation_rates)), **options,
    )  # fmt: skip


def _of_mask(mask):
    if not isinstance(mask, BlockMask):
        raise ValueError(f"block_mask is a {type(mask).__name__}, expected a BlockMask: see BlockMask.from_dense")
    return {
        "length": mask.length,
        "block": mask.block,
        "block_heads": mask.heads,
        "blocks": mask.bytes,
    }


def ring_block_sparse_attention(q, k, v, block_mask, *, causal=False, layout="contiguous",
                                **options):  # fmt: skip
    """Attention where a `BlockMask` allows it; only rows that are needed travel."""
    options.update(_of_mask(block_mask))
    return attend(q, k, v, causal=causal, layout=layout, **options)


def dilated_attention(q, k, v, segment_lengths, dilation_rates, **options):
    """`ring_dilated_attention` of whole sequences in this process alone; needs no job."""
    return ring_dilated_attention(
        q, k, v, segment_lengths, dilation_rates, process_set=_groups.local, **options
    )


def block_sparse_attention(q, k, v, block_mask, **options):
    """`ring_block_sparse_attention` of whole sequences in this process alone; needs no job."""
    return ring_block_sparse_attention(q, k, v, block_mask, process_set=_groups.local, **options)


def merge_attention(out, lse, out2, lse2):
    """Attention over two sets of keys from the results over each: (out, lse).

    Of the same queries: out is (batch, tokens, heads, head_dim), lse (batch, heads, tokens).
    """
    of_out = (out.shape[0], out.shape[2], out.shape[1]) if out.ndim == 4 else None
    if out.shape != out2.shape or lse.shape != lse2.shape or tuple(lse.shape) != of_out:
        raise ValueError(
            f"results do not fit: out {tuple(out.shape)} and {tuple(out2.shape)}, lse {tuple(lse.shape)} and "
            f"{tuple(lse2.shape)}; expected (batch, tokens, heads, head_dim) and (batch, heads, tokens)"
        )
    return framework(out).merge(out, lse, out2, lse2)


def _check_axis(tensor, axis):
    if not -tensor.ndim <= axis < tensor.ndim:
        raise ValueError(
            f"axis {axis} of a tensor of {tensor.ndim} dimensions: axis says which one counts the tokens"
        )


def shard_sequence(full, *, layout="contiguous", axis=1, process_set=None):
    """This rank's tokens of a tensor that every rank has. Shards differ by one token at most.

    Gradients flow back to this rank's tokens of ``full``.
    """
    module = framework(full)
    _check_axis(full, axis)
    return module.take(full, layout, axis, _groups.given(process_set))


def unshard_sequence(shard, *, layout="contiguous", length=None, axis=1, process_set=None):
    """The whole on every rank, from each rank's tokens; gradients flow back, added over the ranks."""
    process_set = _groups.given(process_set)
    module = framework(shard)
    _check_axis(shard, axis)
    if process_set.size() == 1:
        return shard
    if module.is_compiling():
        return module.graph.unshard(shard, layout, length, axis, process_set)
    if length is None:
        tokens = shard.shape[axis]
        length = tokens * process_set.size() if module.EQUAL_SHARES else length_of(tokens, process_set)
    positions, own = places(layout, length, process_set)
    if shard.shape[axis] != len(own):
        raise ValueError(
            f"this rank has {shard.shape[axis]} tokens, the {layout} layout of {length} tokens gives it {len(own)}; "
            "give the layout and length with which the sequence was spread"
        )
    return module.put_together(shard, positions, own, length, axis, process_set)
