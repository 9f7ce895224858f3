"""The call signatures of ring-flash-attention, on `rueda.attention`.

    from rueda.compat.ring_flash_attn import zigzag_ring_flash_attn_func

``group`` is a rueda process set, or None for all ranks. Dropout is refused: the results
are exact. ``return_attn_probs`` gives (out, lse, None), as there. In the varlen functions
``cu_seqlens`` is of this rank's tokens, the whole's divided by the number of ranks, and each sequence
is spread by itself. llama3's spread the packed tokens together and take what
`llama3_flash_attn_prepare_cu_seqlens` returns.
"""

import numpy as np
import torch

import rueda.attention as ra
from rueda import numpy as hvd
from rueda.common.process_sets import global_process_set
from rueda.compat._hf_attention import substitute_hf_flash_attn, update_ring_flash_attn_params

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
]


def _refuse(name, dropout_p):
    if dropout_p:
        raise NotImplementedError(f"{name}: dropout is not supported")


def _register(name, dim, call, doc):
    """A function and its forms for packed tensors, whose 2 or 3 parts lie along ``dim``."""

    def kvpacked(q, kv, *args, **options):
        return call(q, *kv.unbind(dim), *args, **options)

    def qkvpacked(qkv, *args, **options):
        return call(*qkv.unbind(dim), *args, **options)

    variants = {"_func": call, "_kvpacked_func": kvpacked, "_qkvpacked_func": qkvpacked}
    for suffix, function in variants.items():
        function.__name__ = function.__qualname__ = name + suffix
        function.__doc__ = doc
        globals()[name + suffix] = function
        __all__.append(name + suffix)


def _function(name, layout):
    def call(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        alibi_slopes=None, deterministic=False, return_attn_probs=False, group=None,
    ):  # fmt: skip
        _refuse(name, dropout_p)
        out, lse = ra.ring_attention(
            q, k, v, causal=causal, layout=layout, window_size=window_size,
            softmax_scale=softmax_scale, process_set=group, return_lse=True, alibi_slopes=alibi_slopes,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out

    _register(name, 2, call, f"Exact attention in the {layout} layout, with gradients.")


def _varlen_function(name, layout):
    def call(
        q, k, v, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
        window_size=(-1, -1), alibi_slopes=None, deterministic=False, return_attn_probs=False,
        group=None,
    ):  # fmt: skip
        _refuse(name, dropout_p)
        ranks = (group or global_process_set).size()
        out, lse = ra.ring_attention_varlen(
            q, k, v, [int(end) * ranks for end in cu_seqlens], causal=causal, layout=layout,
            layout_of="sequence", window_size=window_size, softmax_scale=softmax_scale,
            process_set=group, return_lse=True, alibi_slopes=alibi_slopes,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out

    _register(name, 1, call, f"Packed sequences, each in the {layout} layout, with gradients.")


_function("ring_flash_attn", "contiguous")
_function("zigzag_ring_flash_attn", "zigzag")
_function("stripe_flash_attn", "striped")
_varlen_function("ring_flash_attn_varlen", "contiguous")
_varlen_function("zigzag_ring_flash_attn_varlen", "zigzag")
_varlen_function("stripe_flash_attn_varlen", "striped")


def llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, world_size):
    """What a rank needs of packed sequences that are cut into equal parts.

    Returns (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice): the ends of this
    rank's queries, and of the keys they see within the slice of all keys.
    """
    ends = [int(end) for end in cu_seqlens]
    if ends[-1] % world_size:
        raise ValueError(f"{ends[-1]} tokens cannot be cut into {world_size} equal parts")
    part = ends[-1] // world_size
    begin, end = rank * part, (rank + 1) * part
    mine = [(a, b) for a, b in zip(ends, ends[1:]) if a < end and b > begin and b > a]
    left = mine[0][0]
    right = end if causal else mine[-1][1]
    queries = [0] + [min(b, end) - begin for _, b in mine]
    keys = [0] + [min(b, right) - left for _, b in mine]
    longest = [max(y - x for x, y in zip(e, e[1:])) for e in (queries, keys)]
    tensors = [torch.tensor(e, dtype=torch.int32) for e in (queries, keys)]
    return (*tensors, *longest, slice(left, right))


def _whole_cu_seqlens(cu_seqlens_q, local_k_slice, tokens, process_set):
    """The ends of all sequences, from what each rank knows of its own part."""
    begin = process_set.rank() * tokens
    known = [begin + int(end) for end in cu_seqlens_q[1:-1]]
    if local_k_slice.start == begin:
        known.insert(0, begin)  # a sequence begins here
    if process_set.size() > 1:
        known = hvd.allgather(np.array(known, np.int64), process_set=process_set).tolist()
    return [*known, tokens * process_set.size()]


def _llama3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice,
    dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
    deterministic=False, return_attn_probs=False, group=None,
):  # fmt: skip
    _refuse("llama3_flash_attn_varlen_func", dropout_p)
    process_set = group or global_process_set
    ends = _whole_cu_seqlens(cu_seqlens_q, local_k_slice, q.shape[0], process_set)
    out, lse = ra.ring_attention_varlen(
        q, k, v, ends, causal=causal, layout="contiguous", window_size=window_size,
        softmax_scale=softmax_scale, process_set=group, return_lse=True, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


_register("llama3_flash_attn_varlen", 1, _llama3, "Packed sequences, cut into equal parts.")
