"""Horovod's ``horovod.ray.worker``, by rueda."""

from rueda.ray import BaseWorker as BaseHorovodWorker  # noqa: F401
