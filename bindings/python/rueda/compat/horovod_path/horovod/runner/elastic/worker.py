"""Horovod's ``horovod.runner.elastic.worker``, by rueda: how a rank hears of changes, without a service."""

from rueda.elastic import HostUpdateResult, WorkerNotificationManager  # noqa: F401

HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"

_SERVICES = "WorkerNotificationService", "WorkerNotificationClient"


def __getattr__(name):
    if name in _SERVICES:
        raise ImportError(
            f"{__name__}.{name} is not there: rueda has no services that unpickle what they are sent; a rank hears of "
            "changes from notification_manager in horovod.common.elastic",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class HostsUpdatedRequest:
    """What a listener is told: when hosts changed, and how."""

    def __init__(self, timestamp, res=HostUpdateResult.no_update):
        self.timestamp = timestamp
        self.res = res
