"""Horovod's ``horovod.torch.elastic``, by rueda."""

from rueda.torch.elastic import *  # noqa: F401,F403
