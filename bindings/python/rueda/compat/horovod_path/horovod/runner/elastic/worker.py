"""Horovod's ``horovod.runner.elastic.worker``, by rueda: how a rank hears of changes, without a service."""

from rueda.elastic import HostUpdateResult, WorkerNotificationManager  # noqa: F401

HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


class HostsUpdatedRequest:
    """What a listener is told: when hosts changed, and how."""

    def __init__(self, timestamp, res=HostUpdateResult.no_update):
        self.timestamp = timestamp
        self.res = res
