"""One operation as data, and as the struct of the C ABI."""

import collections
import ctypes

from rueda import _ffi

Operation = collections.namedtuple(
    "Operation",
    "kind dtype input output shape reduce_op root peer tag splits prescale postscale process_set "
    "device stream rows",
    defaults=(_ffi.FLOAT32, None, None, (), _ffi.SUM, 0, 0, 0, (), 1.0, 1.0, 0, -1, None, -1),
)
Operation.__doc__ = "One rueda_op without its name; input and output are addresses."


def struct_of(operation, name, site=0):
    shape = (ctypes.c_int64 * len(operation.shape))(*operation.shape)
    splits = (ctypes.c_int64 * len(operation.splits))(*operation.splits)
    return _ffi.Op(
        ctypes.sizeof(_ffi.Op),
        operation.kind,
        operation.dtype,
        operation.reduce_op,
        operation.root,
        operation.peer,
        operation.tag,
        None if name is None else _encoded(name),
        operation.input,
        operation.output,
        shape,
        len(operation.shape),
        len(operation.splits),
        splits if operation.splits else None,
        operation.prescale,
        operation.postscale,
        operation.process_set,
        site,
        operation.device,
        0,
        operation.stream,
        operation.rows,
    )


def _encoded(name):
    if not isinstance(name, str):
        raise TypeError(f"an operation's name must be a string, not {type(name).__name__}: {name!r}")
    return name.encode()
