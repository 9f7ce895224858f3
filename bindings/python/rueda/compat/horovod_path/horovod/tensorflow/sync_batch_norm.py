"""Horovod's ``horovod.tensorflow.sync_batch_norm``, by rueda."""

from rueda.tensorflow.sync_batch_norm import *  # noqa: F401,F403
