"""Horovod's ``horovod.ray.elastic``, by rueda."""

from rueda.ray import ElasticRayExecutor, RayHostDiscovery  # noqa: F401
