"""The C ABI of librueda as ctypes sees it: this file, and no other, mirrors ``rueda/rueda.h``.

Holds the structs, the codes and their Python exceptions, and finds the library. Nothing here keeps
state apart from the loaded library. Every call releases the GIL, so a thread that waits in the
library never keeps others from computing.
"""

import ctypes
import glob
import os

from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError

ABI_VERSION = 1

# rueda_code
OK = 0
CANCELLED = 1
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
ALREADY_EXISTS = 6
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

# rueda_dtype
UINT8, INT8, INT16, INT32, INT64 = 0, 1, 3, 4, 5
FLOAT16, FLOAT32, FLOAT64, BOOL, BFLOAT16 = 6, 7, 8, 9, 10
FLOAT8_E4M3FN, FLOAT8_E5M2 = 11, 12

# rueda_reduce_op
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = 0, 1, 2, 3, 4, 5

# rueda_kind
ALLREDUCE, ALLGATHER, BROADCAST, REDUCESCATTER, ALLTOALL, BARRIER, SEND, RECV, JOIN = range(9)

MAX_NDIM = 64  # more than NumPy or PyTorch can make


class Error(ctypes.Structure):
    """rueda_error"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("code", ctypes.c_int32),
        ("message", ctypes.c_char * 2048),
    ]

    def __init__(self):
        super().__init__(ctypes.sizeof(Error))


class Lost(ctypes.Structure):
    """rueda_lost"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("pid", ctypes.c_int32),
        ("operations", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("cause_is_final", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("host", ctypes.c_char * 64),
        ("operation", ctypes.c_char * 192),
        ("cause", ctypes.c_char * 256),
    ]

    def __init__(self):
        super().__init__(ctypes.sizeof(Lost))


class InitOptions(ctypes.Structure):
    """rueda_init_options"""

    _fields_ = [("struct_size", ctypes.c_size_t), ("reserved", ctypes.c_int32)]


class Op(ctypes.Structure):
    """rueda_op"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("root", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("tag", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("splits_count", ctypes.c_int32),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("process_set", ctypes.c_int32),
        ("call_site", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    ]


class AttentionSpec(ctypes.Structure):
    """rueda_attention_spec"""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *[(name, ctypes.c_int64) for name in ("batch", "length", "heads", "kv_heads", "head_dim")],
        *[
            (name, ctypes.c_int32)
            for name in ("dtype", "kv_wire", "layout", "ulysses", "rotate_forward")
            + ("rotate_backward", "gather_first", "causal")
        ],
        ("chunk_tokens", ctypes.c_int64),
        ("left", ctypes.c_int64),
        ("right", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("cu_seqlens", ctypes.POINTER(ctypes.c_int64)),
        ("cu_seqlens_count", ctypes.c_int64),
        ("segment_lengths", ctypes.POINTER(ctypes.c_int64)),
        ("dilation_rates", ctypes.POINTER(ctypes.c_int64)),
        ("pair_count", ctypes.c_int64),
        ("head_offset", ctypes.c_int32),
        ("split_heads", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("block_heads", ctypes.c_int64),
        ("blocks", ctypes.c_void_p),
        ("layout_per_sequence", ctypes.c_int32),
        ("key_length", ctypes.c_int64),
        ("cu_seqlens_k", ctypes.POINTER(ctypes.c_int64)),
    ]


# What each code becomes in Python. Codes that are not here are faults of the runtime.
_EXCEPTIONS = {
    INVALID_ARGUMENT: ValueError,
    ALREADY_EXISTS: ValueError,
    DEADLINE_EXCEEDED: DeadlineExceeded,
    RESOURCE_EXHAUSTED: MemoryError,
    UNIMPLEMENTED: NotImplementedError,
}


def find_lost():
    """The `Lost` of the running context, or None. The runtime puts its own here."""
    return None


def exception(code, error):
    """The Python exception for a code other than OK and a filled-in `Error`."""
    message = error.message.decode("utf-8", "replace") or f"rueda failed with code {code}"
    lost = find_lost() if code == UNAVAILABLE else None
    if lost is not None:
        raised = RankLostError(message)
        for name in ("rank", "pid", "operations", "step"):
            setattr(raised, name, getattr(lost, name))
        for name in ("host", "operation", "cause"):
            setattr(raised, name, getattr(lost, name).decode("utf-8", "replace"))
        raised.cause_is_final = lost.cause_is_final != 0
        return raised
    return _EXCEPTIONS.get(code, HorovodInternalError)(message)


_P, _I32, _I64, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_I64_ARRAY = ctypes.POINTER(_I64)
_WORKS = ctypes.POINTER(_P)
_I32_ARRAY = ctypes.POINTER(_I32)
_ERROR = ctypes.POINTER(Error)

# name: (result, arguments)
_FUNCTIONS = {
    "rueda_abi_version": (ctypes.c_uint32, []),
    "rueda_version": (ctypes.c_char_p, []),
    "rueda_code_name": (ctypes.c_char_p, [_I32]),
    "rueda_init": (_I32, [ctypes.POINTER(InitOptions), ctypes.POINTER(_P), _ERROR]),
    "rueda_shutdown": (None, [_P]),
    "rueda_rank": (_I32, [_P]),
    "rueda_size": (_I32, [_P]),
    "rueda_local_rank": (_I32, [_P]),
    "rueda_local_size": (_I32, [_P]),
    "rueda_cross_rank": (_I32, [_P]),
    "rueda_cross_size": (_I32, [_P]),
    "rueda_is_homogeneous": (_I32, [_P]),
    "rueda_lost_rank": (_I32, [_P, ctypes.POINTER(Lost)]),
    "rueda_should_stop": (_I32, [_P, _I32_ARRAY, _ERROR]),
    "rueda_split_rows": (_I64, [_I64, _I32, _I32]),
    "rueda_submit": (_I32, [_P, ctypes.POINTER(Op), _SIZE, _I32, _WORKS, _ERROR]),
    "rueda_add_process_set": (_I32, [_P, _I32_ARRAY, _I32, _I32, _WORKS, _ERROR]),
    "rueda_remove_process_set": (_I32, [_P, _I32, _I32, _WORKS, _ERROR]),
    "rueda_process_sets": (_I32, [_P, _I32_ARRAY, _I32]),
    "rueda_process_set_ranks": (_I32, [_P, _I32, _I32_ARRAY, _I32]),
    "rueda_work_result": (_I64, [_P]),
    "rueda_work_poll": (_I32, [_P]),
    "rueda_work_wait": (_I32, [_P, ctypes.c_double, _ERROR]),
    "rueda_work_released": (_I32, [_P]),
    "rueda_work_stream_wait": (_I32, [_P, _P, _ERROR]),
    "rueda_work_output": (_I32, [_P, ctypes.POINTER(_P), _I64_ARRAY, _I32]),
    "rueda_work_received_splits": (_I32, [_P, _I64_ARRAY, _I32]),
    "rueda_work_release": (None, [_P]),
    "rueda_prepare": (_I32, [_P, ctypes.POINTER(Op), ctypes.POINTER(_P), _ERROR]),
    "rueda_start": (_I32, [_P, _P, _P, _ERROR]),
    "rueda_start_on": (_I32, [_P, _P, _P, _P, _ERROR]),
    "rueda_prepared_wait": (_I32, [_P, ctypes.c_double, _ERROR]),
    "rueda_prepared_poll": (_I32, [_P]),
    "rueda_prepared_stream_wait": (_I32, [_P, _P, _ERROR]),
    "rueda_prepared_released": (_I32, [_P]),
    "rueda_prepared_release": (None, [_P]),
    "rueda_alloc": (_I32, [_P, _SIZE, ctypes.POINTER(_P), _ERROR]),
    "rueda_free": (None, [_P]),
    "rueda_call_site": (_I32, [_P, ctypes.c_char_p]),
    "rueda_stack_file": (_I32, [_P, _I32_ARRAY, _I32_ARRAY]),
    "rueda_counter": (_I64, [_P, ctypes.c_char_p]),
    "rueda_counters": (_I32, [_P, _I64_ARRAY, _I32]),
    "rueda_counter_name": (ctypes.c_char_p, [_I32]),
    "rueda_start_timeline": (_I32, [_P, ctypes.c_char_p, _I32, _ERROR]),
    "rueda_stop_timeline": (_I32, [_P, _ERROR]),
    "rueda_mark": (_I32, [_P, ctypes.c_char_p, _I32]),
    "rueda_int8_quantize": (_I32, [_P, _P, _P, _I64, _I32, _P, _ERROR]),
    "rueda_int8_dequantize": (_I32, [_P, _P, _P, _I64, _I32, _P, _ERROR]),
    "rueda_attention_plan_create": (
        _I32,
        [_P, ctypes.POINTER(AttentionSpec), _I32, _I32, _I32, ctypes.POINTER(_P), _ERROR],
    ),
    "rueda_attention_plan_release": (None, [_P]),
    "rueda_attention_plan_report": (_I32, [_P, _I64_ARRAY, _I32]),
    "rueda_attention_plan_tiles": (_I64, [_P, _I32, _P, _I64]),
    "rueda_attention_plan_work": (_I64, [_P, _I32, _P, _I64]),
    "rueda_attention_plan_balance": (ctypes.c_double, [_P]),
    "rueda_attention_tokens": (_I64, [_I32, _I64, _I32, _I32, _P, _I64]),
    "rueda_attention_forward": (_I32, [_P, _P, _I32, _I32, *[_P] * 5, _WORKS, _WORKS, _ERROR]),
    "rueda_attention_backward": (_I32, [_P, _P, _I32, _I32, *[_P] * 11, _WORKS, _ERROR]),
    "rueda_attention_saved_release": (None, [_P]),
    "rueda_attention_wait": (_I32, [_P, ctypes.c_double, _ERROR]),
    "rueda_attention_poll": (_I32, [_P]),
    "rueda_attention_abort": (None, [_P]),
    "rueda_attention_call_release": (None, [_P]),
    "rueda_attention_use_kernel": (_I32, [ctypes.c_char_p, _ERROR]),
    "rueda_attention_kernel_for": (
        _I32,
        [_I32, _I32, _I64, ctypes.c_char_p, _SIZE, ctypes.c_char_p, _SIZE, _ERROR],
    ),
}


def library_path():
    """Where librueda is: ``RUEDA_LIBRARY`` if set, else beside this package."""
    chosen = os.environ.get("RUEDA_LIBRARY")
    if chosen:
        return chosen
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    found = sorted(glob.glob(os.path.join(folder, "librueda.so*")), key=len)
    if not found:
        raise ImportError(
            f"librueda.so is not in {folder}: install the rueda package (scripts/quickstart), "
            "or set RUEDA_LIBRARY to the library's path"
        )
    return found[0]


def _load():
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cannot load librueda from {path}: {error}") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name, None)
        if function is None:
            raise ImportError(
                f"{path} has no function {name}: it belongs to another version of rueda"
            )
        function.restype = result
        function.argtypes = arguments
    found = loaded.rueda_abi_version()
    if found != ABI_VERSION:
        raise ImportError(
            f"{path} speaks ABI version {found}, this package needs {ABI_VERSION}: "
            "reinstall rueda so that both come from the same build"
        )
    return loaded


library = _load()
