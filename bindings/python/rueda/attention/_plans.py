"""Plans: what a call computes, on how many ranks, as the library sees it."""

import collections
import ctypes
import functools

import numpy as np

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common.process_sets import global_process_set

_lib = _ffi.library

LAYOUTS = {"contiguous": 0, "zigzag": 1, "striped": 2}
ROTATIONS = {"auto": 0, "kv": 1, "q": 2}
_DTYPES = {"float32": _ffi.FLOAT32, "bfloat16": _ffi.BFLOAT16, "float16": _ffi.FLOAT16}
_WIRES = {**_DTYPES, "int8": _ffi.INT8}
_REPORT = (
    "hash tokens steps tiles messages_sent_forward messages_sent_backward bytes_sent_forward "
    "bytes_sent_backward bytes_received_forward bytes_received_backward flops_forward "
    "flops_backward saved_bytes workspace_forward workspace_backward"
).split()

# What the ranks of a call agree on. Lists are tuples, block masks bytes: plans are cached by it.
Spec = collections.namedtuple(
    "Spec",
    "batch length heads kv_heads head_dim dtype layout ulysses rotate_forward rotate_backward "
    "gather_first causal chunk_tokens window scale cu_seqlens segment_lengths dilation_rates "
    "head_offset split_heads block block_heads blocks kv_wire",
    defaults=("contiguous", 1, "auto", "auto", False, False, 0, (-1, -1), 0.0)
    + ((), (), (), "mod", False, 0, 1, b"", None),
)


def _choice(value, choices, what):
    if value not in choices:
        raise ValueError(f"{what} is {value!r}, expected one of {', '.join(map(repr, choices))}")
    return choices[value]


def _struct(spec):
    def numbers(values):
        return (ctypes.c_int64 * len(values))(*values)

    left, right = spec.window
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
    )


class AttentionPlan:
    """What one rank does in a distributed attention: tiles, messages, bytes, memory.

    ``AttentionPlan(length=..., heads=..., head_dim=..., rank=0, ranks=8, layout="zigzag",
    causal=True, ...)`` needs no running job; the keywords are those of `Spec`.

    Attributes
    ----------
    bytes_sent_forward, bytes_sent_backward, flops_forward, flops_backward, workspace_forward,
    workspace_backward, saved_bytes, steps, tiles, tokens, messages_sent_forward, ... : int
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
        self.process_set_id = process_set.process_set_id if process_set is not None else 0
        context = runtime._require_context() if process_set is not None else None
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
    place = runtime.place
    if process_set.process_set_id is None:
        raise ValueError(f"the process set is not registered: {process_set}")
    return _cached(spec, process_set, process_set.key, place)


def position_ids(length, layout="contiguous", rank=None, world=None, process_set=None):
    """Positions in the whole sequence of a rank's tokens, in the order of its tensors (int64).

    What rotary embeddings need. rank and world default to this rank's place in the process set.
    """
    process_set = process_set or global_process_set
    rank = process_set.rank() if rank is None else rank
    world = process_set.size() if world is None else world
    code = _choice(layout, LAYOUTS, "layout")
    count = _lib.rueda_attention_tokens(code, length, rank, world, None, 0)
    if count < 0:
        raise ValueError(f"no rank {rank} of {world} with {length} tokens")
    positions = np.empty(count, np.int64)
    _lib.rueda_attention_tokens(code, length, rank, world, positions.ctypes.data, count)
    return positions
