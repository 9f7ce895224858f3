"""PyTorch's reductions as the library's: (code, factor of the inputs)."""

from torch.distributed import ReduceOp

from rueda import _ffi

_KINDS = ReduceOp.RedOpType
_CODES = {
    _KINDS.SUM: _ffi.SUM,
    _KINDS.AVG: _ffi.AVERAGE,
    _KINDS.MIN: _ffi.MIN,
    _KINDS.MAX: _ffi.MAX,
    _KINDS.PRODUCT: _ffi.PRODUCT,
    _KINDS.BAND: _ffi.BITWISE_AND,
    _KINDS.BOR: _ffi.BITWISE_OR,
    _KINDS.BXOR: _ffi.BITWISE_XOR,
}
LINEAR = _ffi.SUM, _ffi.AVERAGE


def code_of(op, name):
    """(code, factor); the factor is a float, or a tensor to multiply with before."""
    kind = getattr(op, "op", op)
    code, factor = _CODES.get(kind), 1.0
    if code is None:
        if kind != _KINDS.PREMUL_SUM:
            raise ValueError(
                f"{name}: {kind} is not supported; there are {', '.join(k.name for k in _CODES)}, PREMUL_SUM"
            )
        code, factor = _ffi.SUM, _factor(op)
    return code, factor


def _factor(op):
    factor = getattr(op, "factor", None)
    if factor is None:  # before PyTorch 2.12 only its pickled state has it
        factor = op.__getstate__()[1]
    return factor
