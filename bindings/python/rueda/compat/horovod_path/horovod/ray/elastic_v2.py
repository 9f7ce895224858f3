"""Horovod's ``horovod.ray.elastic_v2``, by rueda."""

from rueda.ray import RayHostDiscovery  # noqa: F401
