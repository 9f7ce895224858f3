"""What an executor is told beside its workers."""

from dataclasses import dataclass
from typing import Any, Optional

from rueda.ray import _checks


@dataclass
class Settings:
    """Made by ``RayExecutor.create_settings``, which says what the fields mean. May be changed until the executor is made.

    ``discovery``: of an elastic job, for ``override_discovery=False`` (`ElasticRayExecutor`). ``verbose``: 2 or more
    makes the launcher of an elastic job say what it starts and stops.
    """

    timeout_s: Optional[float] = None
    placement_group_timeout_s: float = 100
    nics: Optional[frozenset] = None
    ssh_identity_file: Optional[str] = None
    ssh_str: Optional[str] = None
    verbose: int = 0
    discovery: Any = None

    def checked(self):
        """Itself, with ``nics`` as a frozenset; ValueError for what is none of its values."""
        where = "create_settings"
        if self.timeout_s is not None:
            _checks.seconds(where, "timeout_s", self.timeout_s)
        _checks.seconds(where, "placement_group_timeout_s", self.placement_group_timeout_s)
        self.nics = _checks.interfaces(where, self.nics)
        return self


def create_settings(
    timeout_s=30, ssh_identity_file=None, ssh_str=None, placement_group_timeout_s=100, nics=None
):
    """Settings of an executor.

    Parameters
    ----------
    timeout_s : float
        Seconds that ranks wait for each other in ``init`` (``RUEDA_START_TIMEOUT``).
    ssh_identity_file, ssh_str : str, optional
        Horovod's, without effect: Ray starts the processes.
    placement_group_timeout_s : float
        Seconds in which the workers must have found their places and be there.
    nics : collection of str, optional
        Names of network interfaces; ranks meet and talk over the first of them that has an IPv4 address.
        Without it they use the address by which Ray knows their node.
    """
    if timeout_s is None:
        raise ValueError("create_settings(timeout_s=None): expected seconds, more than 0")
    return Settings(
        timeout_s, placement_group_timeout_s, nics, ssh_identity_file, ssh_str
    ).checked()
