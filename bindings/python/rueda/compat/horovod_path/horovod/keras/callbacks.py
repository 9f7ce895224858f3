"""Horovod's ``horovod.keras.callbacks``, by rueda."""

from rueda.keras.callbacks import *  # noqa: F401,F403
