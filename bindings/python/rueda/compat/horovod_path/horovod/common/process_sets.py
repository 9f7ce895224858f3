"""Horovod's ``horovod.common.process_sets``, by rueda."""

from rueda.common.process_sets import *  # noqa: F401,F403
