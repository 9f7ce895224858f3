"""rueda: distributed training with Horovod's programming model.

``import rueda as hvd`` works on NumPy arrays, ``import rueda.torch as hvd`` on PyTorch tensors.
PyTorch is imported by the latter only. `rueda.run` starts ranks for one function.
"""

from rueda import _ffi
from rueda.compat.run import run
from rueda.numpy import *  # noqa: F401,F403

__version__ = _ffi.library.rueda_version().decode()
