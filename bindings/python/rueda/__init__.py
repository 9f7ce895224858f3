"""rueda: distributed training with Horovod's programming model.

``import rueda as hvd`` works on NumPy arrays, ``import rueda.torch as hvd`` on PyTorch tensors.
PyTorch is imported by the latter only. `rueda.run` starts ranks for one function.
"""

from rueda import _ffi
from rueda.numpy import *  # noqa: F401,F403

__version__ = _ffi.library.rueda_version().decode()


def __getattr__(name):
    # Ranks import this package too, and have no use for what starts jobs; few need data's.
    if name == "run":
        from rueda.compat.run import run as found
    elif name == "balance":
        from rueda.data import balance as found
    else:
        raise AttributeError(f"module 'rueda' has no attribute {name!r}")
    globals()[name] = found
    return found
