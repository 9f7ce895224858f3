"""Plans: what a call computes, on how many ranks, as the library sees it."""

import collections
import ctypes
import functools
import operator

from rueda import _ffi
from rueda._runtime import runtime
from rueda.attention._groups import local, require
from rueda.attention._layouts import LAYOUTS
from rueda.common.process_sets import registered

_lib = _ffi.library

ROTATIONS = {"auto": 0, "kv": 1, "q": 2}
_DTYPES = {"float32": _ffi.FLOAT32, "bfloat16": _ffi.BFLOAT16, "float16": _ffi.FLOAT16}
_WIRES = {**_DTYPES, "int8": _ffi.INT8}
_WORK_NUMBERS = 16
_REPORT = (
    "hash tokens steps tiles messages_sent_forward messages_sent_backward bytes_sent_forward "
    "bytes_sent_backward bytes_received_forward bytes_received_backward flops_forward "
    "flops_backward saved_bytes workspace_forward workspace_backward keys q_begin q_end kv_begin kv_end "
    "band_low band_high exchanges_forward exchanges_backward group_tokens group_keys q_travels_forward "
    "q_travels_backward"
).split()

# What the ranks of a call agree on. Lists are tuples, block masks bytes: plans are cached by it.
Spec = collections.namedtuple(
    "Spec",
    "batch length heads kv_heads head_dim dtype layout ulysses rotate_forward rotate_backward "
    "gather_first causal chunk_tokens window scale cu_seqlens segment_lengths dilation_rates "
    "head_offset split_heads block block_heads blocks kv_wire per_sequence key_length cu_seqlens_k "
    "softcap alibi_slopes",
    defaults=("contiguous", 1, "auto", "auto", False, False, 0, (-1, -1), 0.0)
    + ((), (), (), "mod", False, 0, 1, b"", None, False, 0, (), 0.0, ()),
)


Tile = collections.namedtuple(
    "Tile",
    "step peer head_begin head_end head_step q q_step q_count k k_step k_count pairs",
)
Tile.__doc__ = """What one kernel call computes: the queries at positions q, q + q_step, ... (q_count of them)
against the keys k, k + k_step, ...; ``pairs`` of them are seen. ``step`` 0 is the rank's own rows, else the rows of
``peer`` have come. Heads are key/value heads."""


def _choice(value, choices, what):
    if value not in choices:
        raise ValueError(f"{what} is {value!r}, expected one of {', '.join(map(repr, choices))}")
    return choices[value]


def softcap_of(value):
    """0.0: none."""
    if value is None or value == 0:
        return 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"softcap is {value!r}, expected a positive number; 0: none")
    return float(value)


def slopes_of(alibi_slopes, batch, heads):
    """Of ALiBi, as a tuple: of each head, or of each entry of the batch and head. Empty: none."""
    if alibi_slopes is None or isinstance(alibi_slopes, tuple) and not alibi_slopes:
        return ()
    if hasattr(alibi_slopes, "tolist"):
        alibi_slopes = alibi_slopes.tolist()
    rows = list(alibi_slopes)
    if rows and hasattr(rows[0], "__len__"):
        flat = tuple(float(x) for row in rows for x in row)
        fits = len(rows) == batch and all(len(row) == heads for row in rows)
    else:
        flat = tuple(float(x) for x in rows)
        fits = len(flat) == heads
    if not fits:
        raise ValueError(
            f"alibi_slopes has {len(flat)} numbers, expected ({heads},): of each query head, or ({batch}, {heads}): of "
            "each entry of the batch and head"
        )
    return flat


def _integer(value, what):
    """As an int of 64 bits: ctypes would cut a larger one without a word."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{what} is {value!r}, expected an integer") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{what} is {value!r}, more than 64 bits hold")
    return number


def slopes_pointer(slopes):
    """The C library's, alive as long as the struct that has it."""
    return ctypes.cast((ctypes.c_float * len(slopes))(*slopes), ctypes.c_void_p) if slopes else None


_INTEGERS = "batch length heads kv_heads head_dim ulysses chunk_tokens block block_heads key_length".split()
_LISTS = "cu_seqlens cu_seqlens_k segment_lengths dilation_rates window".split()


def _struct(spec):
    def numbers(values):
        return (ctypes.c_int64 * len(values))(*values)

    whole = {name: _integer(getattr(spec, name) or 0, name) for name in _INTEGERS}
    for name in _LISTS:
        what = "window_size" if name == "window" else name
        whole[name] = tuple(_integer(value, f"an entry of {what}") for value in getattr(spec, name))
    spec = spec._replace(**whole)
    left, right = spec.window
    if spec.cu_seqlens_k and len(spec.cu_seqlens_k) != len(spec.cu_seqlens):
        raise ValueError(
            f"cu_seqlens_k has {len(spec.cu_seqlens_k)} entries, cu_seqlens_q {len(spec.cu_seqlens)}: each "
            "sequence needs its queries and its keys"
        )
    blocks = ctypes.cast(ctypes.c_char_p(spec.blocks), ctypes.c_void_p) if spec.blocks else None
    return _ffi.AttentionSpec(
        ctypes.sizeof(_ffi.AttentionSpec),
        spec.batch,
        spec.length,
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        _choice(spec.dtype, _DTYPES, "dtype"),
        _choice(spec.kv_wire or spec.dtype, _WIRES, "compression"),
        _choice(spec.layout, LAYOUTS, "layout"),
        spec.ulysses,
        _choice(spec.rotate_forward, ROTATIONS, "rotate"),
        _choice(spec.rotate_backward, ROTATIONS, "rotate"),
        bool(spec.gather_first),
        bool(spec.causal),
        spec.chunk_tokens or 0,
        left,
        right,
        spec.scale or 0.0,
        numbers(spec.cu_seqlens),
        len(spec.cu_seqlens),
        numbers(spec.segment_lengths),
        numbers(spec.dilation_rates),
        len(spec.segment_lengths),
        _choice(spec.head_offset, {"mod": 0, "block": 1}, "head_offset"),
        bool(spec.split_heads),
        spec.block,
        spec.block_heads,
        blocks,
        bool(spec.per_sequence),
        spec.key_length or 0,
        numbers(spec.cu_seqlens_k) if spec.cu_seqlens_k else None,
        softcap_of(spec.softcap),
        slopes_pointer(spec.alibi_slopes),
        len(spec.alibi_slopes),
    )


class AttentionPlan:
    """What one rank does in a distributed attention: tiles, messages, bytes, memory.

    ``AttentionPlan(length=..., heads=..., head_dim=..., rank=0, ranks=8, layout="zigzag",
    causal=True, ...)`` needs no running job; the keywords are those of `Spec`.

    Attributes
    ----------
    bytes_sent_forward, bytes_sent_backward, flops_forward, flops_backward, workspace_forward,
    workspace_backward, saved_bytes, steps, tiles, tokens, keys, messages_sent_forward, ... : int
        Of this rank; bytes and floating-point operations of one call.
    hash : int
        Equal on all ranks whose calls fit together.
    balance : float
        Largest over mean work of all ranks.
    """

    def __init__(self, *, rank=0, ranks=1, process_set=None, **spec):
        spec.setdefault("batch", 1)
        spec.setdefault("kv_heads", spec.get("heads"))
        spec.setdefault("dtype", "float32")
        self.spec = Spec(**spec)
        self.local = process_set is None or process_set is local  # no job behind it
        self.process_set_id = 0 if self.local else process_set.process_set_id
        context = None if self.local else runtime.require_context()
        pointer, error = ctypes.c_void_p(), _ffi.Error()
        code = _lib.rueda_attention_plan_create(
            context, _struct(self.spec), self.process_set_id, rank, ranks,
            ctypes.byref(pointer), ctypes.byref(error),
        )  # fmt: skip
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        self.pointer = pointer.value
        values = (ctypes.c_int64 * len(_REPORT))()
        _lib.rueda_attention_plan_report(self.pointer, values, len(_REPORT))
        for name, value in zip(_REPORT, values):
            setattr(self, name, value)
        self.hash &= (1 << 64) - 1
        self.kept_bytes = _lib.rueda_attention_saved_size(self.pointer)  # of an entry of the batch, for backward

    def for_batch(self, count):
        """The plan of the same call on a batch of so many."""
        slopes = self.spec.alibi_slopes
        if len(slopes) > self.spec.heads:  # of each entry
            slopes = slopes * (count // self.spec.batch)
        spec = self.spec._replace(batch=count, alibi_slopes=slopes)
        return plan_of(spec, local if self.local else registered(self.process_set_id))

    def schedule(self, backward=False):
        """The rectangles of (query, key) positions that the rank computes, as `Tile`s, step by step."""
        count = _lib.rueda_attention_plan_tiles(self.pointer, backward, None, 0)
        numbers = (ctypes.c_int64 * count)()
        _lib.rueda_attention_plan_tiles(self.pointer, backward, numbers, count)
        width = len(Tile._fields)
        return [Tile(*numbers[at : at + width]) for at in range(0, count, width)]

    def work(self, backward=False):
        """The program for who has its kernels: lines of numbers, see rueda_attention_plan_work."""
        count = _lib.rueda_attention_plan_work(self.pointer, backward, None, 0)
        numbers = (ctypes.c_int64 * count)()
        _lib.rueda_attention_plan_work(self.pointer, backward, numbers, count)
        return [numbers[at : at + _WORK_NUMBERS] for at in range(0, count, _WORK_NUMBERS)]

    def __repr__(self):
        return (
            f"AttentionPlan({self.tokens} of {self.spec.length} tokens, {self.spec.layout}: {self.steps} steps, "
            f"{self.tiles} tiles, sends {self.bytes_sent_forward} and {self.bytes_sent_backward} bytes, "
            f"workspace {self.workspace_forward} and {self.workspace_backward} bytes, forward and backward)"
        )

    @property
    def balance(self):
        return _lib.rueda_attention_plan_balance(self.pointer)

    def __del__(self):
        if getattr(self, "pointer", None) and _lib is not None:
            _lib.rueda_attention_plan_release(self.pointer)


@functools.lru_cache(maxsize=256)
def _cached(spec, process_set, key, place):
    return AttentionPlan(process_set=process_set, **spec._asdict())


def plan_of(spec, process_set):
    """The plan of this rank, made once."""
    place = None if process_set is local else runtime.place
    require(process_set)
    return _cached(spec, process_set, process_set.key, place)
