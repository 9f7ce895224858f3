"""What is asked of ``local_attention=``, a function of the user's own, and of what it is given and gives."""


def check(q, k, v, local_attention):
    if not callable(local_attention):
        raise ValueError(f"local_attention is {local_attention!r}, expected a function of q, k and v")
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(
            f"q, k, v must be (batch, tokens, heads, head_dim), got {q.ndim}, {k.ndim} and {v.ndim} dimensions"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] or k.shape[2] != v.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads, {k.shape[2]} key and {v.shape[2]} value heads")


def check_tokens(q, k, layout, length, tokens):
    """``tokens``: those that the layout gives this rank."""
    if q.shape[1] != tokens or k.shape[1] != q.shape[1]:
        raise ValueError(
            f"this rank has {q.shape[1]} queries and {k.shape[1]} keys, the {layout} layout of {length} "
            f"tokens gives it {tokens}; use shard_sequence with the same layout"
        )


def check_result(out, whole):
    """``whole``: q, k and v as the function was given them."""
    shape = tuple(getattr(out, "shape", ()))
    wanted = (*whole[0].shape[:3], whole[2].shape[3])
    if type(out).__module__ == "builtins" or shape != wanted:
        got = shape or type(out).__name__
        raise ValueError(
            f"local_attention gave {got}, expected a tensor {wanted}: (batch, all tokens, this rank's heads, "
            "head_dim), as q is given to it"
        )
