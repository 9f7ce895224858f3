"""Horovod's ``horovod.tensorflow``, by rueda."""

from rueda.tensorflow import *  # noqa: F401,F403
from rueda.tensorflow import SyncBatchNormalization  # noqa: F401

# In place of rueda.tensorflow's modules of the same names, which came with the star.
import horovod.tensorflow.compression
import horovod.tensorflow.elastic
import horovod.tensorflow.functions
import horovod.tensorflow.mpi_ops
import horovod.tensorflow.sync_batch_norm
import horovod.tensorflow.util  # noqa: F401

del horovod
