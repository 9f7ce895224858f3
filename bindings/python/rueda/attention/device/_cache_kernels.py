"""What computes over a cache: kernels of libraries for the keys that all queries see, operations of PyTorch for everything.

Queries are (sequences, queries, heads, head_dim). A library sees the rank's keys as a sequence of their own: it knows no positions of
striped tokens, so masks, ALiBi and windows are not its affair. Sinks are added where partial results are merged.
"""

import functools
import importlib

import torch

from rueda.attention.device import _kernels
from rueda.attention.device import _libraries as libraries

_ELEMENTS = 1 << 26  # of keys that are made float32 at once


class _WithCache:
    """flash_attn_with_kvcache of a package, by the names of its arguments, which differ from version to version."""

    blocks = 1  # of which a block's tokens are a multiple

    @functools.lru_cache(maxsize=None)
    def _function(self):
        function = importlib.import_module(self.module).flash_attn_with_kvcache
        return function, libraries._names(function)

    def missing(self):
        try:
            names = self._function()[1]
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            return f"{self.module} cannot be used: {type(error).__name__}: {error}"
        lacks = {"q", "k_cache", "v_cache", "cache_seqlens", "softmax_scale", "causal", "return_softmax_lse"} - names.keys()
        return f"{self.module} has no argument {', '.join(sorted(lacks))}" if lacks else None

    def refuses_call(self, q, cache, spans, slopes):
        """Why it does not take this call, or None."""
        why = self.refuses(q.device.type, q.dtype, q.shape[3], _kernels._capability(q.device))
        if why:
            return why
        names = self._function()[1]
        if q.shape[3] % self.multiple:
            return f"takes head_dim in multiples of {self.multiple}"
        if slopes is not None:
            return "knows no positions of striped tokens"
        if spans.spec.softcap and "softcap" not in names:
            return "has no softcap"
        if cache.table is None:
            return None
        if not ({"block_table", "page_table"} & names.keys()):
            return "has no block tables"
        return f"takes blocks of {self.blocks} tokens" if cache.block_tokens % self.blocks else None

    def forward(self, q, cache, spans):
        """(out, lse) over the places that all queries see."""
        function, names = self._function()
        k, v = (x if cache.table is not None else x[: cache.sequences] for x in (cache.k, cache.v))
        given = {"q": q, "k_cache": k, "v_cache": v, "cache_seqlens": spans.common.to(torch.int32)}
        given.update(softmax_scale=spans.spec.scale or q.shape[3] ** -0.5, causal=False, return_softmax_lse=True)
        if spans.spec.softcap:
            given["softcap"] = spans.spec.softcap
        if cache.table is not None:
            given["block_table" if "block_table" in names else "page_table"] = cache.table
        out, lse = function(**given)[:2]
        lse = libraries.natural(lse, q.shape[0], q.shape[2], q.shape[1])
        none = torch.isneginf(lse).transpose(1, 2)[..., None]  # without keys out may be anything
        return out.masked_fill(none, 0), lse


class Flash2(_WithCache, libraries.Flash2):
    blocks = 256


class Flash3(_WithCache, libraries.Flash3):
    pass


KERNELS = [Flash3(), Flash2()]


def chosen(q, cache, spans, slopes):
    """The library for the places that all queries see, or None."""
    asked = _kernels._asked.get(q.device.type)
    if not spans.has_common:
        return None
    for kernel in KERNELS:
        if asked in (None, kernel.name) and kernel.refuses_call(q, cache, spans, slopes) is None:
            return kernel
    return None


def partials(q, cache, spans, slopes):
    """(acc, m, l) of all queries over places of the spans, some at a time. ``slopes``: (1 or sequences, heads) or None."""
    batch, rows, heads, width = q.shape
    kv_heads, spec = cache.k.shape[2], spans.spec
    group = heads // kv_heads
    grouped = q.float().view(batch, rows, kv_heads, group, width)
    step = max(1, _ELEMENTS // max(1, batch * kv_heads * width))
    for at in range(0, spans.longest, step):
        k, v, places, valid = cache.rows(spans, at, min(step, spans.longest - at))
        scores = torch.einsum("bqhgd,bkhd->bhgqk", grouped, k.float()) * (spec.scale or width**-0.5)
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        query = spans.position[:, None] + torch.arange(rows, device=q.device)
        distance = (places * spans.ranks + spans.rank)[:, None] - query[..., None]  # (batch, rows, places)
        if slopes is not None:
            each = slopes.view(-1, kv_heads, group, 1, 1)
            scores = scores - each * distance.abs().float()[:, None, None]
        hidden = None if valid is None else ~valid[:, None]
        for hides in _hides(distance, spans):
            hidden = hides if hidden is None else hidden | hides
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        m = scores.amax(-1)
        p = torch.exp(scores - torch.where(torch.isinf(m), torch.zeros_like(m), m)[..., None])
        acc = torch.einsum("bhgqk,bkhd->bqhgd", p, v.float())
        yield acc.flatten(2, 3), m.flatten(1, 2), p.sum(-1).flatten(1, 2)


def _hides(distance, spans):
    """True where a query does not see a key."""
    if spans.spec.causal and spans.spec.queries > 1:
        yield distance > 0
    if spans.left >= 0:
        yield distance < -spans.left
