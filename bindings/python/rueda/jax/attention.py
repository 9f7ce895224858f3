"""Distributed attention of JAX arrays, inside of ``jax.jit`` and outside, with gradients: functions of `rueda.attention`.

>>> out = hvd.attention.ring_attention(q, k, v, causal=True, layout="zigzag")

All ranks call in the same order, in programs that are the same. Without ``length`` they are taken to have
as many tokens each. Gradients come by ``jax.grad`` and ``jax.vjp``, inside of `jax.checkpoint` and loops too; there
are none by ``jax.jvp``, and no second ones. ``jax.vmap`` makes one call with a larger batch. `decode_attention` is called
outside of ``jit``, and has no gradients.
"""

from rueda.attention import (  # noqa: F401
    BlockMask,
    all_gather_attention,
    block_sparse_attention,
    decode_attention,
    dilated_attention,
    merge_attention,
    position_ids,
    ring_attention,
    ring_attention_varlen,
    ring_block_sparse_attention,
    ring_dilated_attention,
    sequence_parallel_sets,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
    usp_attention,
)
