"""Optimizers in jobs whose ranks change: when this process has entered the next epoch they are told."""

import weakref

from rueda._runtime import runtime
from rueda.elastic._points import points

_optimizers = weakref.WeakSet()


def is_elastic():
    """Whether ranks may come and go."""
    epoch = runtime.epoch
    return epoch is not None and epoch.elastic


def follow(optimizer):
    """``optimizer.enter_epoch()`` is called in each new epoch, as long as somebody has the optimizer.

    And again when a training function is left in it that was to go on.
    """
    _optimizers.add(optimizer)


def refuse(what):
    """ValueError in an elastic job."""
    if is_elastic():
        raise ValueError(
            f"{what} is not for elastic jobs: each rank has a part of its own, which nobody else could go on with. Start "
            "the job without --min-np, --max-np and a discovery script, or use hvd.DistributedOptimizer without shard="
        )


def _tell():
    for optimizer in list(_optimizers):
        optimizer.enter_epoch()


runtime.on_new_epoch.append(_tell)
points.on_unwinding.append(_tell)
