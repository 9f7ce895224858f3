"""DeepSpeed's DistributedAttention (Ulysses), on rueda's all-to-all.

    from rueda.compat.deepspeed import DistributedAttention

    attention = DistributedAttention(local_attention, sequence_process_group, scatter_idx=2, gather_idx=1)
    out = attention(q, k, v, 0)                # (batch, tokens of this rank, heads, head_dim)

Any number of heads and of tokens, no state of the process: models with different heads get along.
"""

import numpy as np
import torch

from rueda import numpy as hvd
from rueda.attention import _heads
from rueda.common.process_sets import global_process_set

__all__ = ["DistributedAttention"]


class DistributedAttention(torch.nn.Module):
    """Exchanges heads for tokens around any local attention.

    Parameters
    ----------
    local_attention : callable
        Of (q, k, v, *args, **kwargs) with all tokens and this rank's share of the heads. Its result has
        as many heads as q, or heads and head_dim in one dimension.
    sequence_process_group : ProcessSet or None
        The ranks that share a sequence, each with a contiguous part; None: all.
    scatter_idx, gather_idx : int
        The dimensions of heads (2) and of tokens.
    sp_stream : None
        For devices; must be None.
    """

    def __init__(self, local_attention, sequence_process_group=None, scatter_idx=2, gather_idx=0,
                 sp_stream=None):  # fmt: skip
        super().__init__()
        if scatter_idx != 2 or gather_idx not in (0, 1):
            raise ValueError("DistributedAttention: heads are dimension 2, tokens dimension 0 or 1")
        if sp_stream is not None:
            raise NotImplementedError("DistributedAttention: sp_stream is not supported")
        self.local_attn = local_attention
        self.spg = sequence_process_group or global_process_set
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx

    def forward(self, query, key, value, batch_dim_idx=None, rotary_pos_emb=None, *args, **kwargs):
        """``batch_dim_idx``: 0 for (batch, tokens, heads, head_dim), 1 for tokens first. Older releases
        have no such argument; then it follows from gather_idx."""
        if batch_dim_idx is not None and not isinstance(batch_dim_idx, int):
            args = (batch_dim_idx, rotary_pos_emb, *args)  # what older releases pass on
            if args[1] is None:
                args = (args[0], *args[2:])
            batch_dim_idx = rotary_pos_emb = None
        if batch_dim_idx is None:
            batch_dim_idx = 1 - self.gather_idx
        tokens_first = batch_dim_idx == 1

        joined = False  # heads and head_dim, in the local attention's result

        def local(q, k, v):
            nonlocal joined
            if tokens_first:
                q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            if rotary_pos_emb is not None:
                cos, sin = (x.permute(1, 0, 2, 3) for x in rotary_pos_emb[:2])
                if tokens_first:
                    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
                q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            heads = q.shape[2]
            out = self.local_attn(q, k, v, *args, **kwargs)
            joined = out.dim() == 3
            if joined:
                out = out.unflatten(-1, (heads, -1))
            return out.transpose(0, 1) if tokens_first else out

        if tokens_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        out = _heads.with_local_attention(query, key, value, local, "contiguous", self.spg)
        if tokens_first:
            out = out.transpose(0, 1)
        if query.shape[2] < self.spg.size():  # ranks without heads have not seen it
            flags = hvd.allgather(np.array([joined]), process_set=self.spg)
            joined = bool(flags.any())
        return out.flatten(-2) if joined else out


def _rotated(x, cos, sin):
    """Rotary embedding of the first of the elements, as many as cos has."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
