"""Horovod's ``horovod.tensorflow.keras``, by rueda."""

from rueda.keras import *  # noqa: F401,F403

# In place of rueda.keras's module of the same name, which came with the star.
import horovod.tensorflow.keras.callbacks  # noqa: F401

del horovod
