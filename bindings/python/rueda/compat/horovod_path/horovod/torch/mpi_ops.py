"""Horovod's ``horovod.torch.mpi_ops``, by rueda."""

from rueda.torch.mpi_ops import *  # noqa: F401,F403
from rueda.torch.mpi_ops import _basics  # noqa: F401
