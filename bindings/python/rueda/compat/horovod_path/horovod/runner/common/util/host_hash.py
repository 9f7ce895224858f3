"""Horovod's ``horovod.runner.common.util.host_hash``, by rueda."""

import hashlib
import os
import socket


def _namespaces():
    try:
        return ",".join(sorted(f"{name}={os.readlink('/proc/self/ns/' + name)}" for name in os.listdir("/proc/self/ns")))
    except OSError:
        return ""


def host_hash(salt=None):
    """The same text in all processes of a host (of a container, where those are) and on no other host."""
    name = socket.gethostname()
    whole = name + "-" + _namespaces() + ("" if salt is None else f"-{salt}")
    return f"{name.split('.')[0]}-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"
