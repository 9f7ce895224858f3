"""Horovod's ``horovod.tensorflow.keras.elastic``, by rueda."""

from rueda.keras.elastic import *  # noqa: F401,F403
