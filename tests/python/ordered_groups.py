"""Ordered groups of the C ABI for tests that need no PyTorch."""

import numpy as np
from rueda import _ffi
from rueda._ordered_groups import Description, Group  # noqa: F401


def add(group, array):
    """Sums a float32 array in place over the members; waits."""
    assert array.dtype == np.float32
    total = Description(_ffi.ALLREDUCE, _ffi.FLOAT32, array.size)
    group.run(total, array.ctypes.data, array.ctypes.data, array, None)
