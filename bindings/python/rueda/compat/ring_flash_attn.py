"""The call signatures of ring-flash-attention, on `rueda.attention`.

    from rueda.compat.ring_flash_attn import zigzag_ring_flash_attn_func

``group`` is a rueda process set, or None for all ranks. Dropout and ALiBi are refused: the results
are exact. ``return_attn_probs`` gives (out, lse, None), as there.
"""

import rueda.attention as ra

__all__ = []


def _function(name, layout):
    def call(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        alibi_slopes=None, deterministic=False, return_attn_probs=False, group=None,
    ):  # fmt: skip
        if dropout_p or alibi_slopes is not None:
            raise NotImplementedError(f"{name}: dropout and ALiBi are not supported")
        out, lse = ra.ring_attention(
            q, k, v, causal=causal, layout=layout, window_size=window_size,
            softmax_scale=softmax_scale, process_set=group, return_lse=True,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out

    def kvpacked(q, kv, *args, **options):
        return call(q, kv[:, :, 0], kv[:, :, 1], *args, **options)

    def qkvpacked(qkv, *args, **options):
        return call(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *args, **options)

    variants = {"_func": call, "_kvpacked_func": kvpacked, "_qkvpacked_func": qkvpacked}
    for suffix, function in variants.items():
        function.__name__ = function.__qualname__ = name + suffix
        function.__doc__ = f"Exact attention in the {layout} layout, with gradients."
        globals()[name + suffix] = function
        __all__.append(name + suffix)


_function("ring_flash_attn", "contiguous")
_function("zigzag_ring_flash_attn", "zigzag")
_function("stripe_flash_attn", "striped")
