"""Decoding on a GPU: the steps of one call of rueda_attention_decode_run, on one rank.

Who has which rows and which keys the library says (rueda_attention_decode_work); partial results are those of `_partial`. All is given
to the current stream, and nothing is read back.
"""

import ctypes

import numpy as np
import torch

from rueda import _ffi
from rueda._numbers import whole_numbers
from rueda.attention.device import _cache_kernels, _partial
from rueda.attention.device._cache import Cache, Spans, on_device
from rueda.attention.device._run import run_decode

# As attention/decode_work.h numbers them.
SLOTS = QUERIES, PARTIAL, CAME, RESULTS = range(4)
STEPS = PLACE_QUERIES, ATTEND, MERGE, PUT = range(4)


class Decode:
    """One rank's call. ``spec`` is the library's struct, ``lengths`` an array of the host; ``table``, ``sinks`` and ``slopes`` are
    tensors of the device or None."""

    def __init__(self, spec, rank, ranks, lengths, tensors, table, sinks, slopes):
        self.spec, self.rank, self.ranks, self.lengths = spec, rank, ranks, lengths
        self.q, self.k, self.v, self.out, self.lse = tensors
        self.table, self.sinks, self.slopes = table, sinks, slopes
        self._slots, self._known = {}, None

    # ---- memory

    def take(self, slot, size):
        """Memory of a slot: its address."""
        self._slots[slot] = torch.empty(max(size, 8), dtype=torch.uint8, device=self.q.device)
        return self._slots[slot].data_ptr()

    def give(self, slot):
        """Takes it back, behind what the current stream has been given."""
        del self._slots[slot]

    def held(self):
        """What is taken now."""
        return list(self._slots.values())

    def _view(self, slot, begin, dtype, *shape):
        size = int(np.prod(shape)) * dtype.itemsize
        return self._slots[slot][begin : begin + size].view(dtype).view(shape)

    # ---- shares

    def _work(self):
        """Reads which rows ranks merge and which keys are here, once."""
        if self._known is None:
            most = self.ranks + 2 + 2 * len(self.lengths) * _ffi.ATTENTION_SPAN_NUMBERS
            numbers = np.empty(most, np.int64)
            filled = _ffi.library.rueda_attention_decode_work(
                ctypes.byref(self.spec), self.rank, self.ranks, numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)), most
            )
            begins, rest = numbers[: self.ranks + 1].tolist(), numbers[self.ranks + 1 : filled]
            spans = rest[1:].reshape(-1, _ffi.ATTENTION_SPAN_NUMBERS)
            self._known = begins, int(rest[0]), spans
        return self._known

    def _rows(self, rank):
        """(first row that a rank merges, how many)"""
        begins = self._work()[0]
        return begins[rank], begins[rank + 1] - begins[rank]

    @property
    def _results_travel(self):
        return self.ranks > 1 and not self.spec.own

    def _results(self, rank):
        """A rank's log-sum-exps and rows."""
        at = rank * self._work()[1] if self._results_travel else 0
        count, width = self._rows(rank)[1], self.spec.head_dim
        lse = self._view(RESULTS, at, torch.float32, count)
        return lse, self._view(RESULTS, at + 4 * count, self.q.dtype, count, width)

    def _partials(self):
        spec = self.spec
        shape = spec.batch, spec.queries, spec.heads, spec.head_dim + 2
        return self._view(PARTIAL, 0, torch.float32, *shape)

    # ---- steps

    def perform(self, step):
        """The work of a step."""
        self._WORK[step](self)

    def _all_queries(self):
        spec = self.spec
        if QUERIES not in self._slots:
            return self.q
        return self._view(QUERIES, 0, self.q.dtype, spec.batch, spec.queries, spec.heads, spec.head_dim)

    def _place_queries(self):
        begin, count = self._rows(self.rank)
        rows = self._all_queries().view(-1, self.spec.head_dim)[begin : begin + count]
        rows.copy_(self.q.view(-1, self.spec.head_dim))

    def _attend(self):
        width, partial = self.spec.head_dim, self._partials()
        acc, m, sums = partial[..., :width], partial[..., width], partial[..., width + 1]
        partial.zero_()
        m.fill_(-torch.inf)
        into = acc, m.transpose(1, 2), sums.transpose(1, 2)
        q, cache = self._all_queries(), Cache(self.k, self.v, self.table, len(self.lengths))
        for spans in Spans.of(self._work()[2], self.lengths, self.spec, self.rank, self.ranks, q.device):
            kernel = _cache_kernels.chosen(q, cache, spans, self.slopes)
            if kernel is not None:
                _partial.add(into, (*kernel.forward(q, cache, spans), None))
                spans = spans.behind_common()
            for part in _cache_kernels.partials(q, cache, spans, self.slopes):
                _partial.add(into, part)

    def _merge(self):
        width, (begin, count) = self.spec.head_dim, self._rows(self.rank)
        own = self._partials().view(-1, width + 2)[begin : begin + count]
        parts = own[None]
        if self.ranks > 1:
            came = self._view(CAME, 0, torch.float32, self.ranks - 1, count, width + 2)
            parts = torch.cat([came[: self.rank], parts, came[self.rank :]])
        m, sums = parts[..., width], parts[..., width + 1]
        if self.sinks is not None:  # partial results of one key without a value
            heads = torch.arange(begin, begin + count, device=own.device) % self.spec.heads
            m = torch.cat([m, self.sinks[heads][None]])
            sums = torch.cat([sums, torch.ones_like(sums[:1])])
        most = m.amax(0)
        most = torch.where(torch.isinf(most), torch.zeros_like(most), most)
        weights = torch.exp(m - most)
        total = (weights * sums).sum(0)
        acc = (weights[: self.ranks, :, None] * parts[..., :width]).sum(0)
        none = total == 0
        total = torch.where(none, torch.ones_like(total), total)
        lse, rows = self._results(self.rank)
        rows.copy_(acc / total[:, None])
        lse.copy_(torch.where(none, torch.full_like(most, -torch.inf), most + torch.log(total)))

    def _put(self):
        spec = self.spec
        out, first = self.out.view(-1, spec.head_dim), self._rows(self.rank)[0] if spec.own else 0
        every = torch.empty(out.shape[0], dtype=torch.float32, device=out.device)
        for rank in range(self.ranks) if self._results_travel else (self.rank,):
            begin, count = self._rows(rank)
            lse, rows = self._results(rank)
            out[begin - first : begin - first + count].copy_(rows)
            every[begin - first : begin - first + count].copy_(lse)
        self.lse.copy_(every.view(-1, spec.queries, spec.heads).transpose(1, 2))

    _WORK = {PLACE_QUERIES: _place_queries, ATTEND: _attend, MERGE: _merge, PUT: _put}


def decode(spec, place, lengths, tensors, table, sinks, slopes, process_set_id, is_local):
    """A call of this rank, ``place`` (rank, ranks), on GPU tensors (q, k, v, out, lse)."""
    call = Decode(spec, *place, lengths, tensors, table, sinks, slopes)
    with torch.no_grad():
        run_decode(call, process_set_id, is_local)


def table_of(block_table, like):
    """(host's array or None, tensor of the device or None) of a block table: one that is on the device is not read by the host."""
    if block_table is None:
        return None, None
    if isinstance(block_table, torch.Tensor) and block_table.device == like.device:
        if block_table.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"block_table is {block_table.dtype}, expected int32")
        return None, block_table.to(torch.int32).contiguous()
    array = whole_numbers("block_table", block_table, np.int32)
    return array, on_device(array, like.device)
