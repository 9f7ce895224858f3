"""Horovod's ``horovod.torch.sync_batch_norm``, by rueda."""

from rueda.torch.sync_batch_norm import *  # noqa: F401,F403
