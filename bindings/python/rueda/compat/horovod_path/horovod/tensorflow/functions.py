"""Horovod's ``horovod.tensorflow.functions``, by rueda."""

from rueda.tensorflow.functions import *  # noqa: F401,F403
