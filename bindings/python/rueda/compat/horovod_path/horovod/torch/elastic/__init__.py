"""Horovod's ``horovod.torch.elastic``, by rueda."""

from rueda.torch.elastic import *  # noqa: F401,F403
from rueda.torch.mpi_ops import init, shutdown  # noqa: F401
