"""Elastic membership: not available yet.

The names can be imported, so that a script which offers elastic training as one of its ways runs in
the others; using one of them raises NotImplementedError.
"""

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]


def not_available(*args, **kwargs):
    """Raises NotImplementedError with what to do instead."""
    raise NotImplementedError(
        "elastic membership is not available in this version of rueda: give the job a fixed "
        "number of ranks, save checkpoints on rank 0, and start it again from the last one"
    )


def run_fn(func, reset):
    """Not available yet: raises NotImplementedError."""
    not_available()


class State:
    """Not available yet: making one raises NotImplementedError."""

    def __init__(self, *args, **kwargs):
        not_available()


class ObjectState(State):
    """Not available yet: making one raises NotImplementedError."""


class _NotificationManager:
    init = register_listener = remove_listener = handle_hosts_updated = not_available


notification_manager = _NotificationManager()
