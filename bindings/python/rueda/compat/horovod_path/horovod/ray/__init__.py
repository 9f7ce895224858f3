"""Horovod's ``horovod.ray``, by rueda."""

from rueda.ray import *  # noqa: F401,F403
from rueda.ray import BaseWorker as BaseHorovodWorker  # noqa: F401
