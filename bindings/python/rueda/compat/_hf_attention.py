"""ring-flash-attention's adapter for Hugging Face transformers, on `rueda.attention`.

    from rueda.compat.ring_flash_attn import substitute_hf_flash_attn, update_ring_flash_attn_params

    substitute_hf_flash_attn(process_group, heads_k_stride)       # once, before or after loading models
    ...
    update_ring_flash_attn_params(cu_seqlens, process_group)      # before each batch
    model(input_ids[:, own], position_ids=position_ids[:, own])   # this rank's equal part of the tokens

transformers is imported when `substitute_hf_flash_attn` is called, and must be there.
"""

import importlib

import rueda.attention as ra
from rueda.common.process_sets import global_process_set

_state = {"process_set": None, "ends": None, "save": None}


def update_ring_flash_attn_params(cu_seqlens, process_group=None):
    """Packed sequences of the next batch: their ends, in tokens of all ranks.

    Each rank has an equal part of the tokens, in order. None: each row is one sequence.
    """
    ends = None if cu_seqlens is None else tuple(int(end) for end in cu_seqlens)
    process_set = process_group or global_process_set
    if ends is not None and ends[-1] % process_set.size():
        raise ValueError(f"{ends[-1]} tokens cannot be cut into {process_set.size()} equal parts")
    _state.update(ends=ends, process_set=process_group)


def _attend(query, key, value, causal, scale, window, softcap, sinks):
    """(batch, tokens, heads, head_dim)."""
    ends, process_set = _state["ends"], _state["process_set"]
    options = {"causal": causal, "softmax_scale": scale, "process_set": process_set, "softcap": softcap, "sinks": sinks, "save": _state["save"]}
    if window is not None:
        options["window_size"] = (window - 1, 0 if causal else window - 1)
    if ends is None:
        return ra.ring_attention(query, key, value, **options)
    if query.shape[0] != 1:
        raise ValueError(f"packed sequences are a batch of 1, got {query.shape[0]}")
    out = ra.ring_attention_varlen(
        query[0], key[0], value[0], ends, layout="contiguous", **options
    )
    return out[None]


def _refuse(dropout, attention_mask):
    if dropout:
        raise NotImplementedError("attention dropout is not supported: set attention_dropout=0 in the config")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise NotImplementedError(
            "padding masks are not supported: pack the sequences and call update_ring_flash_attn_params"
        )


def _interface(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None,
               sliding_window=None, softcap=None, is_causal=None, s_aux=None, **kwargs):  # fmt: skip
    """As transformers calls attention since 4.48: (batch, heads, tokens, head_dim) in."""
    _refuse(dropout, attention_mask if attention_mask is None or attention_mask.ndim == 2 else None)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return _attend(query, key, value, bool(causal), scaling, sliding_window, softcap, s_aux), None


def _flash_forward(query_states, key_states, value_states, attention_mask, query_length,
                   is_causal=True, dropout=0.0, position_ids=None, softmax_scale=None,
                   sliding_window=None, use_top_left_mask=False, softcap=None, deterministic=None,
                   s_aux=None, **kwargs):  # fmt: skip
    """As transformers' ``_flash_attention_forward``: (batch, tokens, heads, head_dim)."""
    _refuse(dropout, attention_mask)
    return _attend(query_states, key_states, value_states, is_causal, softmax_scale, sliding_window, softcap, s_aux)


def substitute_hf_flash_attn(process_group=None, heads_k_stride=1, *, save=None):
    """Models of transformers compute with rueda's ring from now on.

    Those that are loaded with ``attn_implementation="flash_attention_2"``, and, where transformers has an
    attention registry (4.48 and newer), with ``attn_implementation="rueda"``, which needs no flash-attn
    package.

    Parameters
    ----------
    process_group : ProcessSet or None
        The ranks that share a sequence; None: all.
    heads_k_stride : int
        How many heads travel at once there; rueda moves what is needed when it is needed. No effect.
    save : None, "qkv" or "out+lse"
        What is kept for backward. "out+lse": for models with ``gradient_checkpointing_enable()``.

    Raises
    ------
    ImportError
        transformers is not installed.
    ValueError
        It has neither of the two places where attention is put in.
    """
    _state.update(process_set=process_group, save=save)
    places = 0
    importlib.import_module("transformers")
    try:
        module = importlib.import_module("transformers.modeling_flash_attention_utils")
        if hasattr(module, "_flash_attention_forward"):
            module._flash_attention_forward = _flash_forward
            places += 1
    except ImportError:
        pass  # newer ones call attention through the registry alone
    try:
        registry = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        for name in ("flash_attention_2", "rueda"):
            registry[name] = _interface
        places += 1
    except (ImportError, AttributeError):
        pass
    if not places:
        raise ValueError(
            "this transformers has neither _flash_attention_forward nor ALL_ATTENTION_FUNCTIONS: use 4.40 or "
            "newer"
        )
