"""Horovod's ``horovod.ray.runner``, by rueda."""

from rueda.ray import Settings as _Settings
from rueda.ray.runner import RayExecutor  # noqa: F401


class MiniSettings(_Settings):
    """`rueda.ray.Settings` with Horovod's parameters. key, ssh_port, ssh_identity_file and elastic have no effect."""

    def __init__(
        self,
        nics=None,
        verbose=1,
        key=None,
        ssh_port=None,
        ssh_identity_file=None,
        timeout_s=300,
        placement_group_timeout_s=100,
        elastic=False,
    ):
        super().__init__(timeout_s, placement_group_timeout_s, nics, ssh_identity_file, verbose=verbose)
        self.key, self.ssh_port, self.elastic = key, ssh_port, elastic
