"""Horovod's ``horovod.ray.elastic_v2``, by rueda."""

from rueda.ray import RayHostDiscovery as _RayHostDiscovery


class RayHostDiscovery(_RayHostDiscovery):
    """`rueda.ray.RayHostDiscovery` with this module's names of what a rank needs."""

    def __init__(self, use_gpu=False, cpus_per_worker=1, gpus_per_worker=1):
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
        self.cpus_per_worker, self.gpus_per_worker = cpus_per_worker, gpus_per_worker
