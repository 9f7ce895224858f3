"""Ordered groups of the C ABI for tests that need no PyTorch: the module of the torch.distributed backend, alone."""

import importlib.util
import pathlib

import numpy as np
import rueda
from rueda import _ffi

_path = pathlib.Path(rueda.__file__).with_name("torch") / "distributed" / "_group.py"
_spec = importlib.util.spec_from_file_location("rueda_ordered_group", _path)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

Group, Description = _module.Group, _module.Description


def add(group, array):
    """Sums a float32 array in place over the members; waits."""
    assert array.dtype == np.float32
    total = Description(_ffi.ALLREDUCE, _ffi.FLOAT32, array.size)
    group.run(total, array.ctypes.data, array.ctypes.data, array, None)
