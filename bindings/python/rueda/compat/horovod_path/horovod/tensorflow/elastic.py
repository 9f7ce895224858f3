"""Horovod's ``horovod.tensorflow.elastic``, by rueda."""

from rueda.tensorflow.elastic import *  # noqa: F401,F403
from rueda.tensorflow.elastic import __getattr__  # noqa: F401
