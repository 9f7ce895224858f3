"""Distributed attention: the ranks of a process set hold the tokens of one sequence.

    import rueda.attention as ra
    q = ra.shard_sequence(full_q, layout="zigzag")                 # this rank's tokens
    out = ra.ring_attention(q, k, v, causal=True, layout="zigzag")
    whole = ra.unshard_sequence(out, layout="zigzag", length=n)    # on every rank

Tensors are (batch, tokens of this rank, heads, head_dim), NumPy arrays (forward only) or PyTorch
tensors on the CPU (with gradients), float32, float16 or, in PyTorch, bfloat16. Results and gradients
are those of ordinary attention over the whole sequence, computed in float32. Key/value heads may be
fewer than query heads. All ranks of a set call in the same order with the same arguments; a mistake
is an error on each of them, and a rank that is lost is named with the step.

Common keywords: ``causal``, ``window_size=(left, right)`` (-1: no limit), ``layout`` ("contiguous",
"zigzag", "striped"), ``softmax_scale``, ``process_set``, ``return_lse`` (also returns the
log-sum-exp, (batch, heads, tokens), float32), ``chunk_tokens`` (bounds the workspace), ``threads``.
``length``: tokens of the whole sequence; left out, the ranks are asked.
"""

import sys

import numpy as np

from rueda.attention._blocks import BlockMask
from rueda.attention._plans import AttentionPlan, Spec, plan_of, position_ids
from rueda.common.process_sets import global_process_set

__all__ = [
    "AttentionPlan",
    "BlockMask",
    "all_gather_attention",
    "block_sparse_attention",
    "dilated_attention",
    "merge_attention",
    "position_ids",
    "ring_attention",
    "ring_attention_varlen",
    "ring_block_sparse_attention",
    "ring_dilated_attention",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
    "usp_attention",
]


def _framework(tensor):
    """The module that works on it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        from rueda.attention import _torch

        return _torch
    if isinstance(tensor, np.ndarray):
        from rueda.attention import _numpy

        return _numpy
    raise ValueError(f"expected a NumPy array or a PyTorch tensor, got {type(tensor).__name__}")


def _length(tokens, process_set):
    """Tokens of all ranks together."""
    if process_set.size() == 1:
        return tokens
    from rueda import numpy as hvd

    mine = np.array([tokens], np.int64)
    return int(hvd.allreduce(mine, op=hvd.Sum, process_set=process_set)[0])


def _attend(q, k, v, process_set=None, length=None, return_lse=False, threads=0,
            window_size=(-1, -1), softmax_scale=None, compression=None, rotate="auto",
            chunk_tokens=None, **spec):  # fmt: skip
    process_set = process_set or global_process_set
    module = _framework(q)
    if any(x.ndim != 4 for x in (q, k, v)):
        raise ValueError("q, k, v must be (batch, tokens, heads, head_dim)")
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have different dtypes: {q.dtype}, {k.dtype}, {v.dtype}")
    if length is None:
        length = _length(q.shape[1], process_set)
    batch, tokens, heads, head_dim = q.shape
    plan = plan_of(
        Spec(
            batch, length, heads, k.shape[2], head_dim, module.name_of(q),
            rotate_forward=rotate, rotate_backward=rotate, window=tuple(window_size),
            scale=softmax_scale or 0.0, chunk_tokens=chunk_tokens or 0, kv_wire=compression, **spec,
        ),
        process_set,
    )  # fmt: skip
    if plan.tokens != tokens:
        raise ValueError(
            f"this rank has {tokens} tokens, the {plan.spec.layout} layout of {length} tokens gives "
            f"it {plan.tokens}; use shard_sequence with the same layout"
        )
    out, lse = module.attention(plan, q, k, v, threads)
    return (out, lse) if return_lse else out


def ring_attention(q, k, v, *, causal=False, layout="contiguous", **options):
    """Exact attention; keys and values (or queries: ``rotate``) travel around the ranks.

    Parameters
    ----------
    q, k, v : array or tensor
        (batch, tokens of this rank, heads, head_dim).
    layout : {"contiguous", "zigzag", "striped"}
        How the tokens are spread. With ``causal`` zigzag and striped give all ranks equal work.
    rotate : {"auto", "kv", "q"}
        What travels; automatic is what takes fewer bytes, for forward and backward by themselves.
    compression : {None, "bfloat16", "int8"}
        Of keys and values that travel. "bfloat16" (of float32): half the bytes, relative error of
        each 2^-9. "int8": head_dim + 4 bytes for each head and token, each element off by at most
        1/254 of the largest of its head. Gradients travel in float32.
    **options
        The common keywords; see the module.
    """
    return _attend(q, k, v, causal=causal, layout=layout, **options)


def ring_attention_varlen(q, k, v, cu_seqlens, *, causal=False, layout="striped", **options):
    """Packed sequences: q, k, v are (tokens of this rank, heads, head_dim).

    ``cu_seqlens``: 0, end of the first sequence, ..., end of the last, in tokens of all ranks. The
    striped layout balances any lengths.
    """
    ends = tuple(int(x) for x in cu_seqlens)
    result = _attend(
        q[None], k[None], v[None], causal=causal, layout=layout, cu_seqlens=ends, length=ends[-1],
        **options,
    )  # fmt: skip
    return tuple(x[0] for x in result) if isinstance(result, tuple) else result[0]


def all_gather_attention(q, k, v, *, causal=False, layout="contiguous", **options):
    """As `ring_attention`, but everything is received before computing: more memory, fewer waits."""
    return _attend(q, k, v, causal=causal, layout=layout, gather_first=True, rotate="kv", **options)


def ulysses_attention(q, k, v, *, causal=False, layout="contiguous", **options):
    """Exchanges heads for tokens, computes whole sequences, exchanges back. Any number of heads."""
    ranks = (options.get("process_set") or global_process_set).size()
    return _attend(q, k, v, causal=causal, layout=layout, ulysses=ranks, **options)


def usp_attention(q, k, v, *, ulysses_degree, causal=False, layout="contiguous", **options):
    """Ulysses among neighbouring ``ulysses_degree`` ranks, a ring across the groups."""
    return _attend(q, k, v, causal=causal, layout=layout, ulysses=ulysses_degree, **options)


def ring_dilated_attention(q, k, v, segment_lengths, dilation_rates, *, causal=False,
                           layout="contiguous", head_offset="mod", head_groups="all",
                           mix_grad="exact", **options):  # fmt: skip
    """LongNet's dilated attention over all ranks: every head runs every (segment, rate) pair, and
    one softmax goes over all keys that they select.

    ``head_groups="split"``: each pair has its own heads instead, as fkodom's package has it.
    ``mix_grad="detached"``: the weights with which the pairs' results are mixed count as constants
    in backward, as torchscale has it; each pair is then a call of its own.
    """
    if head_groups not in ("all", "split"):
        raise ValueError(f"head_groups is {head_groups!r}, expected 'all' or 'split'")
    if mix_grad not in ("exact", "detached"):
        raise ValueError(f"mix_grad is {mix_grad!r}, expected 'exact' or 'detached'")
    if len(segment_lengths) != len(dilation_rates):
        raise ValueError("segment_lengths and dilation_rates differ in length")
    mixes = head_groups == "all" and len(segment_lengths) > 1
    if mix_grad == "detached" and mixes and hasattr(_framework(q), "mix_detached"):
        want_lse = options.pop("return_lse", False)
        parts = [
            ring_dilated_attention(
                q, k, v, [w], [r], causal=causal, layout=layout, head_offset=head_offset,
                return_lse=True, **options,
            )
            for w, r in zip(segment_lengths, dilation_rates)
        ]  # fmt: skip
        out, lse = _framework(q).mix_detached(*zip(*parts))
        return (out, lse) if want_lse else out
    return _attend(
        q, k, v, causal=causal, layout=layout, head_offset=head_offset,
        split_heads=head_groups == "split", segment_lengths=tuple(map(int, segment_lengths)),
        dilation_rates=tuple(map(int, dilation_rates)), **options,
    )  # fmt: skip


def ring_block_sparse_attention(q, k, v, block_mask, *, causal=False, layout="contiguous",
                                **options):  # fmt: skip
    """Attention where a `BlockMask` allows it; only rows that are needed travel."""
    return _attend(
        q, k, v, causal=causal, layout=layout, length=block_mask.length, block=block_mask.block,
        block_heads=block_mask.heads, blocks=block_mask.bytes, **options,
    )  # fmt: skip


# Of one rank they are the local operations.
dilated_attention = ring_dilated_attention
block_sparse_attention = ring_block_sparse_attention


def merge_attention(out, lse, out2, lse2):
    """Attention over two sets of keys from the results over each: (out, lse)."""
    return _framework(out).merge(out, lse, out2, lse2)


def shard_sequence(full, *, layout="contiguous", axis=1, process_set=None):
    """This rank's tokens of a tensor that every rank has. Shards differ by one token at most."""
    positions = position_ids(full.shape[axis], layout, process_set=process_set)
    return _framework(full).take(full, positions, axis)


def unshard_sequence(shard, *, layout="contiguous", length=None, axis=1, process_set=None):
    """The whole on every rank, from each rank's tokens; gradients flow back."""
    process_set = process_set or global_process_set
    if length is None:
        length = _length(shard.shape[axis], process_set)
    ranks = range(process_set.size())
    each = [position_ids(length, layout, rank, len(ranks)) for rank in ranks]
    own = each[process_set.rank()]
    if shard.shape[axis] != len(own):
        raise ValueError(f"this rank has {shard.shape[axis]} tokens, expected {len(own)}")
    positions = np.concatenate(each)
    module = _framework(shard)
    if module.__name__.endswith("_torch"):
        return module.put_together(shard, positions, own, length, axis, process_set)
    return module.put_together(shard, positions, length, axis, process_set)
