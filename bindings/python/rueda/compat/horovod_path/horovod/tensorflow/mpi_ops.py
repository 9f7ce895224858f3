"""Horovod's ``horovod.tensorflow.mpi_ops``, by rueda."""

from rueda.tensorflow.mpi_ops import *  # noqa: F401,F403
from rueda.tensorflow.mpi_ops import _basics  # noqa: F401
