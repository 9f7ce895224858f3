"""Horovod's ``horovod.torch.optimizer``, by rueda."""

from rueda.torch.optimizer import *  # noqa: F401,F403
