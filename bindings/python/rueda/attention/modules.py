"""Distributed attention as PyTorch modules.

    layer = ra.RingDilatedAttention([2048, 8192], [1, 4])           # (batch, tokens, heads, head_dim)
    layer = ra.RingDistributedDilatedAttention(768, 12, [2048, 8192], [1, 4])  # (batch, tokens, 768)

Tensors are this rank's tokens, unless a class says otherwise. All compute exactly what the function
of their name does: attention weights are never formed, so there is no dropout of them and none are
returned; put `torch.nn.Dropout` behind. ``ring_size`` ranks, neighbours, share a sequence (all,
unless given; `rueda.init` comes first), or those of ``process_set``.

Arguments of other packages that say how, not what (``use_flash_attention``, ``block_size`` of a ring,
``use_checkpointing``, ...) are taken and have no effect. Those that would change the result or promise
something else (``dropout``, ``model_parallel``, ``cpu_offload``, ...) are refused unless they are off.
"""

import functools

import torch
from torch import nn

from rueda.attention import _attend, _functions, _groups
from rueda.attention._blocks import BlockMask
from rueda.attention._lengths import length_of
from rueda.common.process_sets import global_process_set
from rueda.torch._compiler import is_compiling

__all__ = list(_functions.MODULES)

_HOW = frozenset(
    "op use_tf32 use_flash_attention use_checkpointing use_gradient_checkpointing block_size "
    "activation_checkpointing communication_backend bucket_size overlap_communication use_deepspeed "
    "zero_stage enable_fault_tolerance checkpoint_interval auto_resume enable_monitoring "
    "profile_memory log_level compile_model data_parallel enable_memory_pool use_memory_pool "
    "enable_profiling mixed_precision enable_error_recovery attention_backend".split()
)
_REFUSED = frozenset(
    "dropout attention_dropout model_parallel cpu_offload nvme_offload use_8bit_optimizer "
    "use_gradient_compression use_adaptive_sparsity".split()
)


def _check_rest(name, rest):
    for key, value in rest.items():
        if key in _REFUSED:
            if value:
                why = "attention is exact; use torch.nn.Dropout behind it" if "dropout" in key else (
                    "it is not part of rueda"
                )
                raise NotImplementedError(f"{name}({key}={value!r}): {why}")
        elif key not in _HOW:
            raise TypeError(f"{name}() has no argument {key!r}")


def _process_set(ring_size, process_set):
    if process_set is not None:
        if ring_size is not None and ring_size != process_set.size():
            raise ValueError(f"ring_size is {ring_size}, the process set has {process_set.size()}")
        return process_set
    if ring_size is None:
        return global_process_set
    return _groups.sequence_parallel_sets(ring_size)[0]


class _Attention(nn.Module):
    """What they have in common: projections, if embed_dim is given, around one function.

    Parameters are called as in fkodom's package: q_proj, k_proj, v_proj, norm, out_proj.
    """

    def __init__(self, embed_dim=None, num_heads=None, *, kv_heads=None, causal=False,
                 layout="contiguous", ring_size=None, process_set=None, bias=True, layer_norm=False,
                 layer_norm_eps=1e-5, gamma_init=1.0, device=None, dtype=None, options=None,
                 rest=None):  # fmt: skip
        super().__init__()
        _check_rest(type(self).__name__, rest or {})
        self.causal, self.layout = causal, layout
        self.options = dict(options or {})
        self.process_set = _process_set(ring_size, process_set)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        if embed_dim is None:
            return
        if num_heads is None or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is no multiple of num_heads {num_heads}")
        if num_heads % (kv_heads or num_heads):
            raise ValueError(f"num_heads {num_heads} is no multiple of kv_heads {kv_heads}")
        made = {"device": device, "dtype": dtype}
        self.head_dim = embed_dim // num_heads
        kv_dim = self.head_dim * (kv_heads or num_heads)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, kv_dim, bias=bias, **made)
        self.v_proj = nn.Linear(embed_dim, kv_dim, bias=bias, **made)
        self.norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps, **made) if layer_norm else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        for linear, gain in (
            (self.q_proj, 1.0), (self.k_proj, 1.0), (self.v_proj, gamma_init), (self.out_proj, gamma_init)
        ):  # fmt: skip
            nn.init.xavier_normal_(linear.weight, gain=gain)
            if bias:
                nn.init.zeros_(linear.bias)

    def extra_repr(self):
        said = {"num_heads": self.num_heads, "causal": self.causal, "layout": self.layout}
        for name in ("segment_lengths", "dilation_rates"):
            said[name] = getattr(self, name, None)
        return ", ".join(f"{name}={value!r}" for name, value in said.items() if value is not None)

    def _attend(self, q, k, v, **options):
        raise NotImplementedError

    def _heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim))

    def forward(self, query, key=None, value=None, is_causal=None, *, length=None,
                attention_mask=None, attn_mask=None, key_padding_mask=None, need_weights=False,
                average_attn_weights=True, key_length=None):  # fmt: skip
        """(batch, tokens, embed_dim), or (batch, tokens, heads, head_dim) without embed_dim.

        key and value are the query unless given; ``is_causal`` is the constructor's ``causal`` unless
        given; ``length``: tokens of all ranks, so that they need not be asked; ``key_length``: keys, where
        they are not as many. With
        ``need_weights`` the result is (output, None), as `torch.nn.MultiheadAttention` returns it.
        """
        if not (attention_mask is None and attn_mask is None and key_padding_mask is None):
            raise NotImplementedError(
                f"{type(self).__name__}: masks given as tensors are not supported; use is_causal, "
                "window_size, a BlockMask, or packed sequences (ring_attention_varlen)"
            )
        key = query if key is None else key
        value = key if value is None else value
        causal = self.causal if is_causal is None else is_causal
        if self.process_set is _groups.local:
            length, key_length = query.shape[1], key.shape[1]
        spread = {"length": length}
        if key_length is not None and key_length != length:
            spread["key_length"] = key_length
        if self.embed_dim is None:
            out = self._attend(query, key, value, causal=causal, **spread)
        else:
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
            out = self._attend(
                self._heads(q), self._heads(k), self._heads(v), causal=causal, **spread
            )
            out = out.flatten(-2)
            if self.norm is not None:
                out = self.norm(out)
            out = self.out_proj(out)
        return (out, None) if need_weights else out


class RingAttention(_Attention):
    """`ring_attention`. Keywords: ``causal``, ``layout``, ``window_size``, ``softmax_scale``, ``rotate``,
    ``chunk_tokens``, ``compression``, ``threads``, ``softcap``, ``alibi_slopes``, ``save``; with embed_dim also ``kv_heads``, ``bias``."""

    _function = staticmethod(_functions.ring_attention)
    _options = frozenset(
        "window_size softmax_scale rotate chunk_tokens compression threads softcap alibi_slopes save".split()
    )

    def __init__(self, embed_dim=None, num_heads=None, *, kv_heads=None, causal=False,
                 layout="contiguous", ring_size=None, process_set=None, bias=True, device=None,
                 dtype=None, **rest):  # fmt: skip
        options = {key: rest.pop(key) for key in list(rest) if key in self._options}
        super().__init__(
            embed_dim, num_heads, kv_heads=kv_heads, causal=causal, layout=layout,
            ring_size=ring_size, process_set=process_set, bias=bias, device=device, dtype=dtype,
            options=options, rest=rest,
        )  # fmt: skip

    def _attend(self, q, k, v, **options):
        function = type(self)._function
        return function(
            q, k, v, layout=self.layout, process_set=self.process_set, **self.options, **options
        )


class UlyssesAttention(RingAttention):
    """`ulysses_attention`, with `RingAttention`'s arguments."""

    _function = staticmethod(_functions.ulysses_attention)
    _options = frozenset("window_size softmax_scale threads softcap alibi_slopes save".split())


class RingDilatedAttention(_Attention):
    """`ring_dilated_attention`: LongNet's, (batch, tokens of this rank, heads, head_dim).

    ``head_groups="split"`` gives each pair heads of its own. ``softmax_scale``, ``head_offset`` and
    ``threads``, ``softcap``, ``alibi_slopes`` and ``save`` as there.
    """

    def __init__(self, segment_lengths, dilation_rates, dropout=0.0, *, causal=False,
                 layout="contiguous", ring_size=None, process_set=None, softmax_scale=None,
                 head_offset="mod", head_groups="all", threads=0, softcap=0.0, alibi_slopes=None,
                 save=None, embed_dim=None, num_heads=None, kv_heads=None, bias=True, layer_norm=False,
                 layer_norm_eps=1e-5, gamma_init=1.0,
                 device=None, dtype=None, **rest):  # fmt: skip
        self._pairs(segment_lengths, dilation_rates)
        super().__init__(
            embed_dim, num_heads, kv_heads=kv_heads, causal=causal, layout=layout,
            ring_size=ring_size, process_set=process_set, bias=bias, layer_norm=layer_norm,
            layer_norm_eps=layer_norm_eps, gamma_init=gamma_init, device=device, dtype=dtype,
            options={
                "softmax_scale": softmax_scale, "head_offset": head_offset,
                "head_groups": head_groups, "threads": threads, "softcap": softcap,
                "alibi_slopes": alibi_slopes, "save": save,
            },
            rest={"dropout": dropout, **rest},
        )  # fmt: skip
        self.segment_lengths = tuple(map(int, segment_lengths))
        self.dilation_rates = tuple(map(int, dilation_rates))

    def _pairs(self, segment_lengths, dilation_rates):
        if len(segment_lengths) != len(dilation_rates):
            raise ValueError(
                f"{len(segment_lengths)} segment lengths and {len(dilation_rates)} dilation rates: "
                "they are pairs"
            )
        for length, rate in zip(segment_lengths, dilation_rates):
            if rate > length:
                raise ValueError(
                    f"dilation rate {rate} exceeds its segment length {length}: are the arguments "
                    "swapped? Name them"
                )

    def _attend(self, q, k, v, **options):
        return _functions.ring_dilated_attention(
            q, k, v, self.segment_lengths, self.dilation_rates, layout=self.layout,
            process_set=self.process_set, **self.options, **options,
        )  # fmt: skip


class DilatedAttention(RingDilatedAttention):
    """`dilated_attention`: whole sequences in this process alone; needs no job."""

    def __init__(self, segment_lengths, dilation_rates, softmax_scale=None, attention_dropout=0.0,
                 op=None, **rest):  # fmt: skip
        super().__init__(
            segment_lengths, dilation_rates, softmax_scale=softmax_scale,
            process_set=_groups.local, attention_dropout=attention_dropout, op=op, **rest,
        )  # fmt: skip


class MultiheadDilatedAttention(RingDilatedAttention):
    """Projections around `DilatedAttention`; a layer norm before the last one, as in MAGNETO.

    The pairs come in the order of fkodom's package: dilation_rates, then segment_lengths. Name them.
    """

    def __init__(self, embed_dim, num_heads, dilation_rates, segment_lengths, dropout=0.0, bias=True,
                 layer_norm=True, **rest):  # fmt: skip
        super().__init__(
            segment_lengths, dilation_rates, dropout, embed_dim=embed_dim, num_heads=num_heads,
            bias=bias, layer_norm=layer_norm, process_set=_groups.local, **rest,
        )  # fmt: skip


class RingDilatedAttentionProduction(RingDilatedAttention):
    """`RingDilatedAttention` from a config object with attributes of the arguments' names."""

    def __init__(self, config=None, **arguments):
        if config is not None:
            known = config if isinstance(config, dict) else vars(config)
            arguments = {**known, **arguments}
        super().__init__(**arguments)


class RingDistributedDilatedAttention(RingDilatedAttention):
    """Projections around `RingDilatedAttention`: (batch, tokens of this rank, embed_dim)."""

    def __init__(self, embed_dim, num_heads, segment_lengths, dilation_rates, dropout=0.0, bias=True,
                 layer_norm=True, layer_norm_eps=1e-5, gamma_init=1.0, *, sequence_parallel=True,
                 **rest):  # fmt: skip
        if not sequence_parallel:
            rest["process_set"] = _groups.local
        super().__init__(
            segment_lengths, dilation_rates, dropout, embed_dim=embed_dim, num_heads=num_heads,
            bias=bias, layer_norm=layer_norm, layer_norm_eps=layer_norm_eps, gamma_init=gamma_init,
            **rest,
        )  # fmt: skip


class DistributedImprovedMultiheadDilatedAttention(RingDistributedDilatedAttention):
    """`MultiheadDilatedAttention`; with ``sequence_parallel`` the ranks share the work.

    Input and output are the whole sequence on every rank. With ``sequence_parallel`` each computes its
    tokens, projections included, and the result is gathered. Parameters' gradients are then those of
    its tokens, times the number of ranks where all compute one loss of the whole: averaged over the
    ranks, as `DistributedOptimizer` does, they are the exact ones.
    """

    def __init__(self, embed_dim, num_heads, segment_lengths, dilation_rates, dropout=0.0, bias=True,
                 layer_norm=True, layer_norm_eps=1e-5, gamma_init=1.0, *, sequence_parallel=False,
                 **rest):  # fmt: skip
        super().__init__(
            embed_dim, num_heads, segment_lengths, dilation_rates, dropout, bias, layer_norm,
            layer_norm_eps, gamma_init, sequence_parallel=sequence_parallel, **rest,
        )  # fmt: skip

    def forward(self, query, key=None, value=None, is_causal=None, *, length=None, **rest):
        if self.process_set is _groups.local:
            return super().forward(query, key, value, is_causal, **rest)
        length = query.shape[1]
        spread = {"layout": self.layout, "process_set": self.process_set}
        own = [x if x is None else _functions.shard_sequence(x, **spread) for x in (query, key, value)]
        need_weights = rest.pop("need_weights", False)
        out = super().forward(*own, is_causal, length=length, **rest)
        out = _functions.unshard_sequence(out, length=length, **spread)
        return (out, None) if need_weights else out


class DistributedMultiheadDilatedAttention(DistributedImprovedMultiheadDilatedAttention):
    """The same."""


@functools.lru_cache(maxsize=32)
def _blocks(length, block, settings):
    mask = BlockMask.pattern(length=length, block=block, **dict(settings))
    return mask.heads, mask.bytes


if hasattr(torch, "_dynamo") and hasattr(torch.compiler, "assume_constant_result"):
    _constant_blocks = torch.compiler.assume_constant_result(_blocks.__wrapped__)
else:
    _constant_blocks = _blocks


class BlockSparseRingDilatedAttention(RingDilatedAttention):
    """`RingDilatedAttention` where a block mask allows it: a key counts as often as pairs select it.

    Parameters
    ----------
    sparse_config : object or dict, optional
        With any of the names below.
    sparsity_ratio : float or None
        The share of blocks that is *kept*; None leaves the pattern as it is.
    pattern_type : str
        See `BlockMask.pattern`.
    block_size, local_window_size, global_tokens : int
        In tokens.
    seed : int
        Of the blocks that are added or removed for the ratio; equal on all ranks.
    """

    def __init__(self, segment_lengths, dilation_rates, sparse_config=None, *,
                 sparsity_ratio=0.25, pattern_type="dilated_sparse", block_size=128,
                 local_window_size=512, global_tokens=64, seed=0, **rest):  # fmt: skip
        super().__init__(segment_lengths, dilation_rates, **rest)
        given = {
            "sparsity_ratio": sparsity_ratio, "pattern_type": pattern_type, "block_size": block_size,
            "local_window_size": local_window_size, "global_tokens": global_tokens, "seed": seed,
        }  # fmt: skip
        if sparse_config is not None:
            known = sparse_config if isinstance(sparse_config, dict) else vars(sparse_config)
            given.update({key: value for key, value in known.items() if key in given})
        self.block_size = int(given["block_size"])
        self.pattern = (
            ("name", getattr(given["pattern_type"], "value", given["pattern_type"])),
            ("density", given["sparsity_ratio"]),
            ("window", given["local_window_size"]),
            ("global_tokens", given["global_tokens"]),
            ("seed", given["seed"]),
        )
        BlockMask.pattern(length=1, block=1, **dict(self.pattern))  # says what is wrong with it

    def mask(self, length):
        """The `BlockMask` for a sequence of so many tokens."""
        return BlockMask.pattern(length=length, block=self.block_size, **dict(self.pattern))

    def _attend(self, q, k, v, *, length, **options):
        if length is None:
            if is_compiling():
                raise ValueError("under torch.compile a block-sparse module must be given length=")
            length = length_of(q.shape[1], self.process_set)
        made = _constant_blocks if is_compiling() else _blocks
        heads, data = made(length, self.block_size, self.pattern)
        return _attend.attend(
            q, k, v, layout=self.layout, process_set=self.process_set, length=length,
            block=self.block_size, block_heads=heads, blocks=data,
            segment_lengths=self.segment_lengths, dilation_rates=self.dilation_rates,
            head_offset=self.options["head_offset"],
            split_heads=self.options["head_groups"] == "split",
            softmax_scale=self.options["softmax_scale"], threads=self.options["threads"],
            softcap=self.options["softcap"], alibi_slopes=self.options["alibi_slopes"],
            save=self.options["save"], **options,
        )  # fmt: skip


class BlockSparseRingDistributedDilatedAttention(BlockSparseRingDilatedAttention):
    """Projections around `BlockSparseRingDilatedAttention`: (batch, tokens of this rank, embed_dim)."""

    def __init__(self, embed_dim, num_heads, segment_lengths, dilation_rates, sparse_config=None, *,
                 layer_norm=True, **rest):  # fmt: skip
        super().__init__(
            segment_lengths, dilation_rates, sparse_config, embed_dim=embed_dim, num_heads=num_heads,
            layer_norm=layer_norm, **rest,
        )  # fmt: skip
