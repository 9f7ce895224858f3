"""Horovod's ``horovod.torch.compression``, by rueda."""

from rueda.torch.compression import *  # noqa: F401,F403
