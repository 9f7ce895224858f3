"""Horovod's ``horovod.ray.ray_logger``, by rueda."""

from rueda.ray.ray_logger import configure, log  # noqa: F401
