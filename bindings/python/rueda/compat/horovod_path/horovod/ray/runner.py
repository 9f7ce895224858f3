"""Horovod's ``horovod.ray.runner``, by rueda."""

from rueda.ray import Settings as MiniSettings  # noqa: F401
from rueda.ray.runner import RayExecutor  # noqa: F401
