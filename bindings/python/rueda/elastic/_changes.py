"""How a rank hears that the job's hosts are about to change.

The launcher writes its announcement, (serial << 8 | changes), to memory that every rank of a host sees; a
commit looks at it. Horovod's listeners are told the same, for programs that register one, or play the
launcher in a test.
"""

import enum
import threading

__all__ = ["HostUpdateResult", "WorkerNotificationManager", "notification_manager"]


class HostUpdateResult(enum.IntFlag):
    """What changed: flags."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


def serial_of(word):
    """Of an announcement: larger for a later one."""
    return word >> 8


def changes_of(word):
    """Of an announcement: a `HostUpdateResult`."""
    return HostUpdateResult(word & HostUpdateResult.mixed)


class WorkerNotificationManager:
    """Passes changes on to who listens; Horovod's name for it.

    Threads: any. A listener is called by whoever tells of the change.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._listeners = []

    def init(self, rendezvous_addr=None, rendezvous_port=None, nic=None, hostname=None, local_rank=None):
        """Nothing is to be started: there is no service. May be called again."""

    def register_listener(self, listener):
        """``listener.on_hosts_updated(timestamp, result)`` is called from now on."""
        with self._lock:
            if not any(each is listener for each in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener):
        """Ends that; nothing happens to who does not listen."""
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def handle_hosts_updated(self, timestamp, update_res):
        """Tells all listeners."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
