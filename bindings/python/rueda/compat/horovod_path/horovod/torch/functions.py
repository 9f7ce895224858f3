"""Horovod's ``horovod.torch.functions``, by rueda."""

from rueda.torch.functions import *  # noqa: F401,F403
