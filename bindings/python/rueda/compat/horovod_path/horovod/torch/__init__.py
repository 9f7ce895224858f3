"""Horovod's ``horovod.torch``, by rueda."""

from rueda.torch import *  # noqa: F401,F403
from rueda.torch import _check_has_gpu  # noqa: F401

# In place of rueda.torch's modules of the same names, which came with the star.
import horovod.torch.compression
import horovod.torch.elastic
import horovod.torch.functions
import horovod.torch.mpi_ops
import horovod.torch.optimizer  # noqa: F401

del horovod
