"""Horovod's ``horovod.tensorflow.keras``, by rueda."""

from rueda.keras import *  # noqa: F401,F403

# In place of rueda.keras's modules of the same names, which came with the star.
import horovod.tensorflow.keras.callbacks
import horovod.tensorflow.keras.elastic  # noqa: F401

del horovod
