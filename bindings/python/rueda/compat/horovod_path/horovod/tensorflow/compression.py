"""Horovod's ``horovod.tensorflow.compression``, by rueda."""

from rueda.tensorflow.compression import *  # noqa: F401,F403
