"""Elastic membership: a training function that goes on when ranks are lost, come, or are taken away.

>>> @rueda.elastic.run
... def train(state):
...     for state.batch in range(state.batch, batches):
...         step(state)
...         state.commit()

`_state` is what is kept, `_loop` runs the function, `_changes` is how a rank hears of changes. `_points` are the places at which
a loss does not end the function, `_replicas` the groups that count there together. `_transfer` gives all ranks the state of one,
with `_reading` out of each other's memory. `_mirror` keeps what is a rank's own on another one: `_mirror_plan` says where,
`_mirror_exchange` moves it.
"""

from rueda.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.elastic._changes import HostUpdateResult, WorkerNotificationManager, notification_manager
from rueda.elastic._loop import reset, run, run_fn
from rueda.elastic._state import ObjectState, State

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "reset",
    "run",
    "run_fn",
]
