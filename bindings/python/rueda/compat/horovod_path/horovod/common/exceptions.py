"""Horovod's ``horovod.common.exceptions``, by rueda."""

from rueda.common.exceptions import *  # noqa: F401,F403
