"""The types of elements by the names that NumPy, PyTorch and JAX have for them, and how they can be reduced."""

import ctypes
import functools

from rueda import _ffi

CODES = {
    "bool": _ffi.BOOL,
    "uint8": _ffi.UINT8,
    "uint16": _ffi.UINT16,
    "uint32": _ffi.UINT32,
    "uint64": _ffi.UINT64,
    "int8": _ffi.INT8,
    "int16": _ffi.INT16,
    "int32": _ffi.INT32,
    "int64": _ffi.INT64,
    "float16": _ffi.FLOAT16,
    # Of the ml_dtypes package in NumPy; the 8-bit ones are on the CPU moved and not reduced.
    "bfloat16": _ffi.BFLOAT16,
    "float8_e4m3fn": _ffi.FLOAT8_E4M3FN,
    "float8_e5m2": _ffi.FLOAT8_E5M2,
    "float32": _ffi.FLOAT32,
    "float64": _ffi.FLOAT64,
    "complex64": _ffi.COMPLEX64,
    "complex128": _ffi.COMPLEX128,
}


def check_reduction(kind, dtype, op, prescale=1.0, postscale=1.0, device=-1):
    """ValueError for what could not be started, with what to do instead.

    For those who know what they will reduce long before they start it; a start checks by itself.

    Parameters
    ----------
    kind : str
        For the text.
    dtype, op : int
        rueda_dtype and rueda_reduce_op.
    device : int
        -1: host memory.
    """
    refusal = _refusal(dtype, op, prescale, postscale, device)
    if refusal is not None:
        raise ValueError(f"{kind}: {refusal}")


@functools.lru_cache(1024)
def _refusal(dtype, op, prescale, postscale, device):
    error = _ffi.Error()
    check = _ffi.library.rueda_check_reduction
    code = check(dtype, op, prescale, postscale, device, ctypes.byref(error))
    return None if code == 0 else str(_ffi.exception(code, error))
