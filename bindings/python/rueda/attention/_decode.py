"""Decoding: a few new queries against a key/value cache that is spread over the ranks."""

import contextlib
import ctypes

import numpy as np

from rueda import _ffi
from rueda._numbers import whole_numbers
from rueda._runtime import runtime
from rueda.attention import _groups
from rueda.attention._attend import AttentionRequest, framework, require_alike
from rueda.attention._calls import Call, Ended, refuse, told
from rueda.attention._lengths import threads_of
from rueda.attention._plans import _DTYPES, _integer, slopes_of, slopes_pointer, softcap_of

_DEVICES = ("cpu", "cuda")


def decode_attention(q, k_cache, v_cache, lengths, *, block_table=None, queries="same", causal=True,
                     window_size=(-1, -1), global_tokens=0, sinks=None, softmax_scale=None,
                     softcap=0.0, alibi_slopes=None, process_set=None, return_lse=False, threads=0, async_op=False):  # fmt: skip
    """Attention of the last tokens of each sequence over a cache of which each rank has a part.

    Token ``t`` of a sequence lies on rank ``t % ranks``, at place ``t // ranks`` of that rank's cache, which is what
    ``ring_attention(..., layout="striped")`` has of a prompt. The new tokens' keys and values are in the cache already, each
    on its rank. Only queries and partial results travel. No gradients; NumPy arrays, PyTorch tensors on the CPU or a GPU, or JAX
    arrays on the CPU outside of ``jit``, where they lie in the host's memory. Of a GPU all is given to the current stream, and
    the host waits for nothing that a GPU does.

    Parameters
    ----------
    q : array or tensor
        (sequences, new tokens, heads, head_dim): the last tokens of each sequence.
    k_cache, v_cache : array or tensor
        This rank's: (sequences, places, kv_heads, head_dim), contiguous. With ``block_table`` (blocks, places of a block,
        kv_heads, head_dim).
    lengths : sequence of int
        Of each sequence, its tokens on all ranks, the new ones too. 0: no sequence; its result is 0. Numbers of the host.
    block_table : array or tensor of int, optional
        (sequences, most blocks): which blocks have a sequence's tokens on this rank, in order. One on the caches' GPU is not looked
        at by the host: its blocks are not checked.
    queries : {"same", "own"}
        "same": q has all sequences and is the same on all ranks, and so is the result. "own": q and the result are of this
        rank's sequences, an equal share in order (the first ranks have one more); lengths and caches are of all of them.
    causal : bool
        New tokens do not see those that come after them.
    window_size : (left, right)
        A query sees keys up to ``left`` tokens before it; -1: all. ``right`` is -1 or 0.
    global_tokens : int
        With a window: the first so many tokens are seen whatever the window.
    sinks : sequence of float, optional
        Of each head, a score that takes part in the softmax and has no value. A tensor on the caches' GPU is not compared among
        the ranks.
    softcap, alibi_slopes : float; (heads,) or (sequences, heads) of all ranks
        As everywhere.
    softmax_scale, process_set, return_lse, threads, async_op
        As everywhere: see the module. The log-sum-exp, (sequences, heads, new tokens), has the sinks in it.

    Returns
    -------
    As ``q``, of its dtype; computed in float32. The bits do not depend on ``threads``.

    Raises
    ------
    ValueError
        Wrong arguments; HorovodInternalError on ranks whose own are right.
    """
    process_set = _groups.given(process_set)
    _groups.require(process_set)
    with told(process_set, refuse):
        tensors = _Tensors(q, k_cache, v_cache)
        if queries not in ("same", "own"):
            raise ValueError(f"queries is {queries!r}, expected 'same' or 'own'")
        left, right = (_integer(x, "window_size") for x in window_size)
        if right not in (-1, 0):
            raise ValueError(f"window_size is {tuple(window_size)}: what comes behind the last tokens is not there; right is -1 or 0")
        sequences, tokens, heads, head_dim = q.shape
        if hasattr(lengths, "device") and getattr(lengths.device, "type", "cpu") != "cpu":
            raise ValueError(f"lengths are on {lengths.device}: give numbers of the host, which must know what travels")
        lengths = whole_numbers("lengths", lengths, np.int64).reshape(-1)
        block_table, tensors.table = tensors.table_of(block_table)
        table = tensors.table if block_table is None else block_table
        if table is not None and (table.ndim != 2 or len(table) != len(lengths) or table.shape[1] == 0):
            raise ValueError(f"block_table is {tuple(table.shape)}, expected ({len(lengths)} sequences, blocks)")
        sinks, tensors.sinks = tensors.sinks_of(sinks)
        if sinks is not None and len(sinks) != heads:
            raise ValueError(f"there are {len(sinks)} sinks, expected one for each of {heads} heads")
        slopes = slopes_of(alibi_slopes, len(lengths), heads)
        spec = _ffi.AttentionDecodeSpec(
            struct_size=ctypes.sizeof(_ffi.AttentionDecodeSpec),
            batch=len(lengths),
            queries=tokens,
            heads=heads,
            kv_heads=k_cache.shape[2],
            head_dim=head_dim,
            dtype=tensors.dtype,
            own=queries == "own",
            causal=bool(causal),
            left=left,
            global_tokens=_integer(global_tokens, "global_tokens"),
            scale=softmax_scale or 0.0,
            lengths=_pointer(lengths, ctypes.c_int64),
            sinks=None if sinks is None else sinks.ctypes.data,
            sequences=sequences,
            blocks=k_cache.shape[0],
            block_tokens=k_cache.shape[1],
            block_table=_pointer(block_table, ctypes.c_int32),
            table_blocks=0 if table is None else table.shape[1],
            softcap=softcap_of(softcap),
            alibi_slopes=slopes_pointer(slopes),
            alibi_count=len(slopes),
        )
        tensors.lengths, tensors.slopes = lengths, slopes
    with tensors.errors():
        call = tensors.start(spec, process_set, threads_of(threads, process_set))
        result = (tensors.out, tensors.lse) if return_lse else tensors.out
        if async_op and not tensors.made_by:
            return AttentionRequest(call, result)
        call.wait()
    if tensors.made_by:  # JAX's arrays are not written to
        result = tuple(map(tensors.made_by, result)) if return_lse else tensors.made_by(result)
    return AttentionRequest(Ended(), result) if async_op else result


def _pointer(array, kind):
    return None if array is None else array.ctypes.data_as(ctypes.POINTER(kind))


class _Tensors:
    """Those of one call, of any framework."""

    _on_device = False  # its work is called back
    made_by = None  # of NumPy's arrays those of the framework
    errors = contextlib.nullcontext  # the framework's

    def __init__(self, q, k, v):
        require_alike(q, k, v)
        if hasattr(q, "aval"):
            q, k, v = self._of_jax(q, k, v)
        if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or k.shape[3] != q.shape[3]:
            raise ValueError(
                f"shapes do not fit: q {tuple(q.shape)}, k_cache {tuple(k.shape)}, v_cache {tuple(v.shape)}; expected "
                "(sequences, new tokens, heads, head_dim), and caches alike, (sequences or blocks, places, kv_heads, head_dim)"
            )
        if q.dtype != k.dtype or q.dtype != v.dtype:
            raise ValueError(f"q and the caches have different dtypes: {q.dtype}, {k.dtype}, {v.dtype}")
        if isinstance(q, np.ndarray):
            self._of_numpy(q, k, v)
        else:
            self._of_torch(q, k, v)
        name = framework(q).name_of(q)
        if name not in _DTYPES:
            raise ValueError(f"dtype is {name!r}, expected one of {', '.join(map(repr, _DTYPES))}")
        self.dtype = _DTYPES[name]

    def _of_numpy(self, q, k, v):
        _require(k.flags.c_contiguous and v.flags.c_contiguous)
        self._q, self._k, self._v = np.ascontiguousarray(q), k, v
        self.out = np.empty_like(self._q)
        self.lse = np.empty((q.shape[0], q.shape[2], q.shape[1]), np.float32)
        self._addresses = [x.ctypes.data for x in (self._q, k, v, self.out, self.lse)]

    def _of_jax(self, *arrays):
        """As NumPy's."""
        import jax

        from rueda.jax._library import jax_errors

        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            raise ValueError("decode_attention of JAX arrays goes by the host's memory: call it outside of jit, grad and vmap")
        if any(device.platform != "cpu" for x in arrays for device in x.devices()):
            raise ValueError("decode_attention takes JAX arrays on the CPU: put them there by jax.device_put")
        self.made_by, self.errors = jax.numpy.asarray, jax_errors
        return map(np.asarray, arrays)  # where they lie, without a copy

    def _of_torch(self, q, k, v):
        import torch

        from rueda.attention import device

        if not all(isinstance(x, torch.Tensor) and x.device.type in _DEVICES for x in (q, k, v)):
            raise ValueError("decode_attention takes NumPy arrays, PyTorch tensors on the CPU or a GPU, or JAX arrays")
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise ValueError("decode_attention has no gradients: call it under torch.no_grad()")
        _require(k.is_contiguous() and v.is_contiguous())
        self._q, self._k, self._v = q.detach().contiguous(), k, v
        self.out = torch.empty_like(self._q)
        self.lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32, device=q.device)
        self._on_device = device.takes(q)
        self._addresses = [x.data_ptr() for x in (self._q, k, v, self.out, self.lse)]

    def table_of(self, block_table):
        """(array of the host or None, tensor of the GPU or None)"""
        if self._on_device:
            from rueda.attention.device import table_of

            return table_of(block_table, self._q)
        return None if block_table is None else whole_numbers("block_table", block_table, np.int32), None

    def sinks_of(self, sinks):
        """(array of the host or None, tensor of the GPU or None)"""
        if sinks is None:
            return None, None
        if not self._on_device:
            return np.ascontiguousarray(sinks, np.float32).reshape(-1), None
        from rueda.attention.device import on_device

        if getattr(sinks, "device", None) == self._q.device:
            there = sinks.detach().float().reshape(-1)
            # Its values are not read; that there are some is agreed on.
            return np.full(len(there), np.nan, np.float32), there
        sinks = np.ascontiguousarray(sinks, np.float32).reshape(-1)
        return sinks, on_device(sinks, self._q.device)

    def start(self, spec, process_set, threads):
        is_local = process_set is _groups.local
        if self._on_device:
            return self._run(spec, process_set, is_local)
        pointer, error = ctypes.c_void_p(), _ffi.Error()
        code = _ffi.library.rueda_attention_decode(
            None if is_local else runtime.require_context(), ctypes.byref(spec), 0 if is_local else process_set.process_set_id,
            threads, *self._addresses, ctypes.byref(pointer), ctypes.byref(error),
        )  # fmt: skip
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        return Call(pointer, (self, process_set))

    def _run(self, spec, process_set, is_local):
        from rueda.attention.device import decode, on_device

        slopes = None
        if self.slopes:
            slopes = on_device(np.array(self.slopes, np.float32).reshape(-1, spec.heads), self._q.device)
        place = (0, 1) if is_local else (process_set.rank(), process_set.size())
        tensors = self._q, self._k, self._v, self.out, self.lse
        decode(
            spec, place, self.lengths, tensors, self.table, self.sinks, slopes,
            0 if is_local else process_set.process_set_id, is_local,
        )  # fmt: skip
        return Ended()


def _require(contiguous):
    if not contiguous:
        raise ValueError("the caches must be contiguous: a copy in each call would cost more than the call")
