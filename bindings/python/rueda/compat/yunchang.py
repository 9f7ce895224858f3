"""yunchang's LongContextAttention and what goes with it, on rueda.

    from rueda.compat.yunchang import EXTRACT_FUNC_DICT, LongContextAttention, set_seq_parallel_pg

    set_seq_parallel_pg(ulysses_degree, ring_degree, hvd.rank(), hvd.size())
    q = EXTRACT_FUNC_DICT["zigzag"](full_q, hvd.rank(), hvd.size(), rd=ring_degree, ud=ulysses_degree)
    out = LongContextAttention(ring_impl_type="zigzag")(q, k, v, causal=True)

Tokens lie as there: the layout spreads them over the rings, and the ranks of a Ulysses group split
what their ring has. Any number of heads and tokens. The kernels of ``attn_type`` are all rueda's.
"""

import enum

import numpy as np
import torch

import rueda.attention as ra
from rueda import numpy as hvd_numpy
from rueda.attention import _groups, _heads
from rueda.attention._layouts import runs_of

__all__ = [
    "EXTRACT_FUNC_DICT",
    "PROCESS_GROUP",
    "AttnType",
    "LongContextAttention",
    "LongContextAttentionQKVPacked",
    "UlyssesAttention",
    "basic_extract_local",
    "set_seq_parallel_pg",
    "stripe_extract_local",
    "zigzag_extract_local",
]

_LAYOUTS = {"basic": "contiguous", "zigzag": "zigzag", "strip": "striped", "stripe": "striped"}


class AttnType(enum.Enum):
    """Names of kernels; all give the same result here."""

    AITER = "aiter"
    FA = "fa"
    FA3 = "fa3"
    FLASHINFER = "flashinfer"
    TORCH = "torch"
    TORCH_CUDNN = "torch_cudnn"
    TORCH_EFFICIENT = "torch_efficient"
    TORCH_FLASH = "torch_flash"
    TORCH_MATH = "torch_math"


class _ProcessGroup:
    """The process sets of this rank, as `set_seq_parallel_pg` made them."""

    ULYSSES_PG = None
    RING_PG = None


PROCESS_GROUP = _ProcessGroup()


def set_seq_parallel_pg(sp_ulysses_degree, sp_ring_degree, rank, world_size, use_ulysses_low=True):
    """Ranks in a grid of Ulysses groups and rings, as often as they fit into the world.

    Called by all ranks. With ``use_ulysses_low`` neighbours are a Ulysses group, else a ring.
    """
    degree = sp_ulysses_degree * sp_ring_degree
    if degree < 1 or world_size % degree:
        raise ValueError(
            f"{sp_ulysses_degree} x {sp_ring_degree} ranks to a sequence do not divide {world_size}"
        )
    near = sp_ulysses_degree if use_ulysses_low else sp_ring_degree
    mine = {}
    for start in range(0, world_size, degree):
        block = np.arange(start, start + degree).reshape(-1, near)
        for name, groups in (("near", block), ("far", block.T)):
            for ranks in groups.tolist():
                made = _groups.set_of_ranks(ranks)
                if rank in ranks:
                    mine[name] = made
    ulysses, ring = ("near", "far") if use_ulysses_low else ("far", "near")
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = mine[ulysses], mine[ring]


def _extract(layout, value, rank, rd, ud, dim):
    """The tokens of the rank's ring, of which a rank of the Ulysses group takes its part."""
    runs = runs_of(layout, value.shape[dim], rank // ud, rd)
    positions = torch.cat([begin + step * torch.arange(count) for begin, count, step in runs])
    begin, count, _ = runs_of("contiguous", len(positions), rank % ud, ud)[0]
    return value.index_select(dim, positions[begin : begin + count])


def basic_extract_local(value, rank, world_size, *args, dim=1, **kwargs):
    return _extract("contiguous", value, rank, world_size, 1, dim).detach().clone()


def zigzag_extract_local(value, rank, world_size, rd, ud, dim=1, *args, **kwargs):
    return _extract("zigzag", value, rank, rd, ud, dim)


def stripe_extract_local(value, rank, world_size, rd, ud, dim=1, *args, **kwargs):
    return _extract("striped", value, rank, rd, ud, dim)


EXTRACT_FUNC_DICT = {
    "basic": basic_extract_local,
    "strip": stripe_extract_local,
    "zigzag": zigzag_extract_local,
}


def _layout_of(ring_impl_type):
    """``basic_flashinfer`` and the like name kernels behind the layout."""
    layout = _LAYOUTS.get(ring_impl_type.split("_")[0])
    if layout is None:
        raise ValueError(
            f"ring_impl_type is {ring_impl_type!r}, expected one of {', '.join(_LAYOUTS)}"
        )
    return layout


def _tokens_of_each(tokens, process_set):
    if process_set.size() == 1:
        return [tokens]
    mine = np.array([tokens], np.int64)
    return hvd_numpy.allgather(mine, process_set=process_set).tolist()


class LongContextAttention(torch.nn.Module):
    """Heads for tokens among ``PROCESS_GROUP.ULYSSES_PG``, a ring over ``PROCESS_GROUP.RING_PG``.

    The other arguments choose kernels and schedules there and have no effect here.
    """

    def __init__(self, scatter_idx=2, gather_idx=1, ring_impl_type="basic", use_pack_qkv=False,
                 use_sync=False, attn_type=AttnType.FA, attn_processor=None):  # fmt: skip
        super().__init__()
        if (scatter_idx, gather_idx) != (2, 1):
            raise ValueError("tensors are (batch, tokens, heads, head_dim): scatter 2, gather 1")
        if PROCESS_GROUP.RING_PG is None:
            raise ValueError("call set_seq_parallel_pg() first")
        self.ulysses_pg, self.ring_pg = PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG
        self.layout = _layout_of(ring_impl_type)

    def forward(self, query, key, value, dropout_p=0.0, softmax_scale=None, causal=False,
                window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                return_attn_probs=False, *args, **kwargs):  # fmt: skip
        """(batch, tokens of this rank, heads, head_dim), with gradients."""
        if dropout_p:
            raise NotImplementedError("dropout is not supported")
        tokens = _tokens_of_each(query.shape[1], self.ulysses_pg)
        exchange = _heads.Exchange(self.ulysses_pg, tokens, query.shape[2], key.shape[2])
        q, k, v = exchange.whole(query), exchange.keys(key), exchange.keys(value)
        if exchange.heads[exchange.rank] == 0:
            out = exchange.no_heads(q, k, v)  # on its whole ring
        else:
            if alibi_slopes is not None:  # of all heads
                first = sum(exchange.heads[: exchange.rank])
                alibi_slopes = alibi_slopes[..., first : first + q.shape[2]]
            out = ra.ring_attention(
                q, k, v, causal=causal, layout=self.layout, window_size=window_size,
                softmax_scale=softmax_scale, process_set=self.ring_pg, softcap=softcap,
                alibi_slopes=alibi_slopes,
            )  # fmt: skip
        return exchange.back(out)


class UlyssesAttention(LongContextAttention):
    """Among ``sequence_process_group`` alone, or all ranks."""

    def __init__(self, sequence_process_group=None, scatter_idx=2, gather_idx=1, use_sync=False,
                 attn_type=AttnType.FA):  # fmt: skip
        torch.nn.Module.__init__(self)
        if (scatter_idx, gather_idx) != (2, 1):
            raise ValueError("tensors are (batch, tokens, heads, head_dim): scatter 2, gather 1")
        self.ulysses_pg = sequence_process_group or ra.sequence_parallel_sets(1)[1]
        self.ring_pg, self.layout = _groups.local, "contiguous"


class LongContextAttentionQKVPacked(LongContextAttention):
    """Of (batch, tokens, 3, heads, head_dim)."""

    def __init__(self, scatter_idx=3, gather_idx=1, ring_impl_type="basic", **options):
        if (scatter_idx, gather_idx) != (3, 1):
            raise ValueError("tensors are (batch, tokens, 3, heads, head_dim): scatter 3, gather 1")
        super().__init__(ring_impl_type=ring_impl_type, **options)

    def forward(self, qkv, *args, **options):
        return super().forward(*qkv.unbind(2), *args, **options)
