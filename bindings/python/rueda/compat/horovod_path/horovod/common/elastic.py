"""Horovod's ``horovod.common.elastic``, by rueda."""

from rueda.common.elastic import *  # noqa: F401,F403
