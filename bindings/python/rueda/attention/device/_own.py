"""The kernel "cuda": rueda's own, from librueda_cuda.so (attention/cuda/functions.h), for what libraries refuse."""

import ctypes
import functools
import pathlib

import torch

from rueda import _ffi
from rueda.attention.device._program import CAUSAL
from rueda.attention.device._scores import PLAIN

_VERSION = 4
_ALL = 1 << 60
_ITEM = 6  # numbers of an item
_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_library_file = None  # another one, for tests


class _Strided(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "row", "head"))]


class _Call(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_int32), ("head_dim", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("batches", "heads", "kv_heads")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        *((name, _Strided) for name in "q k v acc m sums dout lse delta dq dk dv slopes".split()),
        ("items", ctypes.c_void_p), ("ranges", ctypes.c_void_p), ("item_count", ctypes.c_int64),
    ]  # fmt: skip


class _MergeCall(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_int32), ("head_dim", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("batches", "rows", "heads", "fresh")),
        *((name, _Strided) for name in "acc m sums out lse".split()),
    ]  # fmt: skip


_PASS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Call), ctypes.c_void_p)
_ROWS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_MergeCall), ctypes.c_void_p)


class _Functions(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("block_rows", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)),
        ("forward", _PASS), ("backward_queries", _PASS), ("backward_keys", _PASS),
        ("merge", _ROWS), ("add", _ROWS), ("finish", _ROWS),
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


def _launch(function, call, x, what):
    """On the device and in the current stream of a tensor."""
    with torch.cuda.device_of(x):
        code = function(ctypes.byref(call), _stream(x))
    if code != 0:
        raise RuntimeError(f"attention: {what} failed: {functions()[0].explain(code).decode()}")


def _seen(piece):
    """(q_pos, q_step, k_pos, k_step, low, high) of its i-th query and j-th key."""
    if piece.place is not None:
        return piece.place
    return (0, 1, 0, 1, -_ALL, 0) if piece.kind == CAUSAL else (0, 0, 0, 0, 0, 0)


def _waves(pieces, side):
    """Pieces with the same rows of a side, {rows: [piece]}, in as few launches as rows that overlap allow."""
    jobs = {}
    for piece in pieces:
        jobs.setdefault(getattr(piece, side), []).append(piece)
    waves = []  # [end of the last rows, jobs]
    for rows in sorted(jobs):
        free = [wave for wave in waves if wave[0] <= rows.begin]
        wave = free[0] if free else [0, {}]
        if not free:
            waves.append(wave)
        wave[0] = rows.begin + (rows.count - 1) * rows.step + 1
        wave[1][rows] = jobs[rows]
    return [wave[1] for wave in waves]


@functools.lru_cache(maxsize=256)
def _work(pieces, keys_are_own, most, device):
    """[(items and behind them ranges, on the device; number of items)] for pieces, a launch each."""
    launches = []
    for jobs in _waves(pieces, "k" if keys_are_own else "q"):
        items, ranges = [], []
        for rows, against in jobs.items():
            for at in range(0, rows.count, most):
                count = min(most, rows.count - at)
                begin = rows.begin + at * rows.step
                items.append((begin, rows.step, count, at, len(ranges), len(against)))
            for piece in against:
                other = piece.q if keys_are_own else piece.k
                q_pos, q_step, k_pos, k_step, low, high = _seen(piece)
                places = (q_pos, q_step, k_pos, k_step)
                if not keys_are_own:
                    places = (k_pos, k_step, q_pos, q_step)
                ranges.append((*other, *places, low, high))
        numbers = torch.tensor([n for line in items + ranges for n in line])
        launches.append((numbers.to(device), len(items)))
    return launches


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

    def lacks(self, scores):
        return None

    def fits(self, piece):
        return True

    def _call(self, q, k, v, scale, scores):
        call = _Call(
            format=_FORMATS[q.dtype], head_dim=q.shape[3], batches=q.shape[0], heads=q.shape[2],
            kv_heads=k.shape[2], scale=scale, softcap=scores.softcap, q=_wide(q), k=_wide(k), v=_wide(v),
        )  # fmt: skip
        slopes = scores.slopes
        if slopes is not None:
            of_each = slopes.stride(0) if slopes.shape[0] > 1 else 0
            call.slopes = _Strided(slopes.data_ptr(), of_each, 0, slopes.stride(1))
        return call

    def _run(self, function, call, x, pieces, keys_are_own, most):
        for made, count in _work(pieces, keys_are_own, most, x.device):
            call.items, call.item_count = made.data_ptr(), count
            call.ranges = made.data_ptr() + 8 * _ITEM * count
            _launch(function, call, x, "the block kernel")

    def add(self, pieces, into, q, k, v, scale, scores=PLAIN):
        """Goes on from partial sums, in place. Rows of the pieces are those of the tensors."""
        own = functions()[0]
        q, k, v = (_dense(x) for x in (q, k, v))
        call = self._call(q, k, v, scale, scores)
        call.acc, call.m, call.sums = _wide(into[0]), _thin(into[1]), _thin(into[2])
        self._run(own.forward, call, q, pieces, False, own.block_rows(q.shape[3], 0))

    def add_gradients(self, pieces, dout, q, k, v, lse, delta, scale, grads, scores=PLAIN):
        """Adds to dq, dk, dv, float32."""
        own = functions()[0]
        q, k, v, dout = (_dense(x) for x in (q, k, v, dout))
        call = self._call(q, k, v, scale, scores)
        call.dout, call.lse, call.delta = _wide(dout), _thin(lse), _thin(delta)
        call.dq, call.dk, call.dv = (_wide(x) for x in grads)
        most = own.block_rows(q.shape[3], 1)
        self._run(own.backward_queries, call, q, pieces, False, most)
        self._run(own.backward_keys, call, q, pieces, True, most)


def _rows(acc, out, **more):
    return _MergeCall(
        format=_FORMATS[out.dtype], head_dim=out.shape[3], batches=out.shape[0], rows=out.shape[1],
        heads=out.shape[2], acc=_wide(acc), out=_wide(out), **more,
    )  # fmt: skip


def merge(into, out, lse, fresh=False):
    """A library's result added to partial sums in one pass over them; False where there is no such kernel. ``fresh``: acc is not
    set yet."""
    own = functions()[0]
    if own is None or out.dtype not in _FORMATS:
        return False
    out = _dense(out)
    call = _rows(into[0], out, m=_thin(into[1]), sums=_thin(into[2]), lse=_thin(lse), fresh=fresh)
    _launch(own.merge, call, out, "merging")
    return True


def add(into, part, fresh=False):
    """A library's gradient added to a float32 sum in one pass, or, where the sum is ``fresh``, written there; False where there is no
    such kernel."""
    own = functions()[0]
    if own is None or part.dtype not in _FORMATS:
        return False
    part = _dense(part)
    _launch(own.add, _rows(into, part, fresh=fresh), part, "adding gradients")
    return True


def finish(acc, m, sums, out):
    """As `_partial.finish` without ``low``, in one pass; False where there is no such kernel."""
    own = functions()[0]
    if own is None or out.dtype not in _FORMATS or out.stride(-1) != 1:
        return False
    _launch(own.finish, _rows(acc, out, m=_thin(m), sums=_thin(sums)), out, "dividing")
    return True
