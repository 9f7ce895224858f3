"""What an executor is told beside its workers."""

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Settings:
    """Made by ``RayExecutor.create_settings``, which says what the fields mean."""

    timeout_s: Optional[float] = None
    placement_group_timeout_s: float = 100
    nics: Optional[frozenset] = None
    ssh_identity_file: Optional[str] = None
    ssh_str: Optional[str] = None


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
    for name, seconds in (
        ("timeout_s", timeout_s),
        ("placement_group_timeout_s", placement_group_timeout_s),
    ):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ValueError(f"create_settings({name}={seconds!r}): expected seconds, more than 0")
    if isinstance(nics, str):
        nics = nics.split(",")
    return Settings(
        timeout_s,
        placement_group_timeout_s,
        frozenset(nics) if nics else None,
        ssh_identity_file,
        ssh_str,
    )
