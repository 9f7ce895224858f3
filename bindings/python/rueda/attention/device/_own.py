"""The kernel "cuda": rueda's own, from librueda_cuda.so (attention/cuda/functions.h), for what libraries refuse."""

import ctypes
import functools
import pathlib

import torch

from rueda import _ffi

_VERSION = 1
_ALL = 1 << 60
_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_library_file = None  # another one, for tests


class _Strided(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "row", "head"))]


class _Call(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_int32), ("head_dim", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("batches", "heads", "kv_heads", "low", "high")),
        ("scale", ctypes.c_float),
        *((name, _Strided) for name in "q k v acc m sums dout lse delta dq dk dv".split()),
        ("items", ctypes.c_void_p), ("ranges", ctypes.c_void_p), ("item_count", ctypes.c_int64),
    ]  # fmt: skip


class _MergeCall(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_int32), ("head_dim", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("batches", "rows", "heads")),
        *((name, _Strided) for name in "acc m sums out lse".split()),
    ]  # fmt: skip


_PASS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Call), ctypes.c_void_p)


class _Functions(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("block_rows", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
        ("forward", _PASS), ("backward_queries", _PASS), ("backward_keys", _PASS),
        ("merge", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_MergeCall), ctypes.c_void_p)),
        ("explain", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)),
    ]  # fmt: skip


@functools.lru_cache(maxsize=None)
def _open(file):
    """(functions, None) or (None, why not)."""
    file = file or pathlib.Path(_ffi.library_path()).with_name("librueda_cuda.so")
    try:
        get = ctypes.CDLL(str(file)).rueda_cuda_attention
    except (OSError, AttributeError) as error:
        return None, f"librueda_cuda.so cannot be used: {error}"
    get.argtypes, get.restype = [ctypes.c_uint32], ctypes.POINTER(_Functions)
    found = get(_VERSION)
    return (found.contents, None) if found else (None, f"{file} is of another version of rueda")


def functions():
    return _open(_library_file)


def _wide(x):
    """(batch, rows, heads, head_dim)"""
    return _Strided(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def _thin(x):
    """(batch, heads, rows)"""
    return _Strided(x.data_ptr(), x.stride(0), x.stride(2), x.stride(1))


def _stream(x):
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None


def _must(code, what):
    if code != 0:
        raise RuntimeError(f"attention: {what} failed: {functions()[0].explain(code).decode()}")


@functools.lru_cache(maxsize=1024)
def _work(rows, others, place, other_place, most, device):
    """Items of ``rows`` rows, ``most`` at a time, against one range of ``others``; (items, ranges, count) on the device."""
    (pos, step), (other_pos, other_step) = place, other_place
    items = [
        (i, 1, min(most, rows - i), pos + i * step, step, 0, 1) for i in range(0, rows, most)
    ]
    made = torch.tensor([n for item in items for n in item] + [0, 1, others, other_pos, other_step])
    return made.to(device), len(items)


def _dense(x):
    return x if x.stride(-1) == 1 else x.contiguous()


class Own:
    name = "cuda"
    what = "rueda's own block kernel"
    kinds = ("full", "causal", "band")
    takes_delta = True
    device = "cuda"

    def refuses(self, device, dtype, head_dim, capability):
        if device != self.device:
            return f"is for {self.device}"
        if capability is not None and capability < 80:
            return "needs compute capability 8.0"
        return functions()[1]

    def _call(self, q, k, v, scale, causal, place):
        if causal:
            place = (0, 1, 0, 1, -_ALL, 0)
        place = place or (0, 1, 0, 1, -_ALL, _ALL)
        call = _Call(
            format=_FORMATS[q.dtype], head_dim=q.shape[3], batches=q.shape[0], heads=q.shape[2],
            kv_heads=k.shape[2], low=place[4], high=place[5], scale=scale, q=_wide(q), k=_wide(k), v=_wide(v),
        )  # fmt: skip
        return call, place[:2], place[2:4]

    def _run(self, function, call, x, *work):
        made, count = _work(*work, x.device)
        call.items, call.ranges, call.item_count = made.data_ptr(), made.data_ptr() + 56 * count, count
        _must(function(ctypes.byref(call), _stream(x)), "the block kernel")

    def add(self, into, q, k, v, scale, causal, place):
        """Goes on from partial sums, in place."""
        own = functions()[0]
        q, k, v = (_dense(x) for x in (q, k, v))
        call, queries, keys = self._call(q, k, v, scale, causal, place)
        call.acc, call.m, call.sums = _wide(into[0]), _thin(into[1]), _thin(into[2])
        most = own.block_rows(q.shape[3], 0)
        self._run(own.forward, call, q, q.shape[1], k.shape[1], queries, keys, most)

    def backward(self, dout, q, k, v, lse, delta, scale, causal, place):
        """dq, dk, dv in float32."""
        own = functions()[0]
        q, k, v, dout = (_dense(x) for x in (q, k, v, dout))
        call, queries, keys = self._call(q, k, v, scale, causal, place)
        shapes = (x.shape for x in (q, k, v))
        grads = [torch.zeros(shape, dtype=torch.float32, device=q.device) for shape in shapes]
        call.dout, call.lse, call.delta = _wide(dout), _thin(lse), _thin(delta)
        call.dq, call.dk, call.dv = (_wide(x) for x in grads)
        most = own.block_rows(q.shape[3], 1)
        self._run(own.backward_queries, call, q, q.shape[1], k.shape[1], queries, keys, most)
        self._run(own.backward_keys, call, q, k.shape[1], q.shape[1], keys, queries, most)
        return grads


def merge(into, out, lse):
    """A library's result added to partial sums in one pass over them; False where there is no such kernel."""
    own = functions()[0]
    if own is None or out.dtype not in _FORMATS:
        return False
    out = _dense(out)
    call = _MergeCall(
        format=_FORMATS[out.dtype], head_dim=out.shape[3], batches=out.shape[0], rows=out.shape[1],
        heads=out.shape[2], acc=_wide(into[0]), m=_thin(into[1]), sums=_thin(into[2]), out=_wide(out),
        lse=_thin(lse),
    )  # fmt: skip
    _must(own.merge(ctypes.byref(call), _stream(out)), "merging")
    return True
