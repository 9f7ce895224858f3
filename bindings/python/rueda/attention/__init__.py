"""Distributed attention: the ranks of a process set hold the tokens of one sequence.

    import rueda.attention as ra
    q = ra.shard_sequence(full_q, layout="zigzag")                 # this rank's tokens
    out = ra.ring_attention(q, k, v, causal=True, layout="zigzag")
    whole = ra.unshard_sequence(out, layout="zigzag", length=n)    # on every rank

Tensors are (batch, tokens of this rank, heads, head_dim), NumPy arrays (forward only), PyTorch
tensors on the CPU or a GPU or JAX arrays on the CPU, in ``jax.jit`` too (both with gradients); float32, float16 or, not in
NumPy, bfloat16. Results and gradients
are those of ordinary attention over the whole sequence, computed in float32. Key/value heads may be
fewer than query heads. All ranks of a set call in the same order with the same arguments; a mistake
is an error on each of them, and a rank that is lost is named with the step.

Common keywords: ``causal``, ``window_size=(left, right)`` (-1: no limit), ``layout`` ("contiguous",
"zigzag", "striped"), ``softmax_scale``, ``process_set`` (or a group of ``torch.distributed``), ``return_lse`` (also returns the
log-sum-exp, (batch, heads, tokens), float32), ``qkv_format`` ("bshd", or "bhsd": (batch, heads,
tokens, head_dim)), ``async_op`` (returns an `AttentionRequest` at once), ``chunk_tokens`` (bounds the
workspace), ``threads``, ``softcap`` (scores become softcap * tanh(score / softcap)), ``alibi_slopes`` (of each query head,
or (batch, heads): ``-slope * |i + keys - queries - j|`` is added to the score of query i and key j, as flash-attention has it,
in positions of the whole sequence), ``sinks`` (of each query head a score that takes part in the softmax and has no value),
``save`` (what is kept for backward: None, "qkv": q, k and v alone, the rest is
computed again, or "out+lse": in a part that PyTorch checkpoints, attention is not computed again). ``length``: tokens of the whole
sequence; left out, the ranks are asked (of JAX arrays, all ranks are taken to have as many).

Keys may be more or fewer than queries (cross-attention; new queries with a prefix of keys): ``key_length``
says how many, where ``length`` is given. Each side is spread by the layout. ``causal`` and ``window_size``
are then aligned at the end, as in flash-attention: the last query stands at the last key.

`decode_attention` is for inference: a few new queries against a cache of keys and values that is spread over the
ranks.

`dilated_attention` and `block_sparse_attention` are local: whole sequences, one process, no job.

`VirtualRing` is a ring of several ranks in one process, for one GPU. GPU tensors: docs/gpu.md.

The modules (`RingAttention`, `MultiheadDilatedAttention`, ...: `rueda.attention.modules`) are
PyTorch's and are imported when they are asked for.
"""

from rueda.attention._attend import AttentionRequest, attend
from rueda.attention._blocks import BlockMask
from rueda.attention._decode import decode_attention
from rueda.attention._functions import (
    MODULES,
    all_gather_attention,
    block_sparse_attention,
    dilated_attention,
    merge_attention,
    ring_attention,
    ring_attention_varlen,
    ring_block_sparse_attention,
    ring_dilated_attention,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
    usp_attention,
)
from rueda.attention._groups import sequence_parallel_sets
from rueda.attention._kernels import kernel_for, use_kernel
from rueda.attention._layouts import position_ids
from rueda.attention._plans import AttentionPlan

__all__ = [
    "AttentionPlan",
    "AttentionRequest",
    "BlockMask",
    "all_gather_attention",
    "block_sparse_attention",
    "decode_attention",
    "dilated_attention",
    "kernel_for",
    "merge_attention",
    "position_ids",
    "ring_attention",
    "ring_attention_varlen",
    "ring_block_sparse_attention",
    "ring_dilated_attention",
    "sequence_parallel_sets",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
    "use_kernel",
    "usp_attention",
]


def __getattr__(name):
    if name == "VirtualRing":
        from rueda.attention.device import VirtualRing

        return VirtualRing
    if name in MODULES:
        from rueda.attention import modules

        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *MODULES, "VirtualRing"])
