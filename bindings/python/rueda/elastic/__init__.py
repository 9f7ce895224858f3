"""Elastic membership: a training function that goes on when ranks are lost, come, or are taken away.

>>> @rueda.elastic.run
... def train(state):
...     for state.batch in range(state.batch, batches):
...         step(state)
...         state.commit()

`_state` is what is kept, `_loop` runs the function, `_changes` is how a rank hears of changes.
"""

from rueda.elastic._changes import HostUpdateResult, notification_manager
from rueda.elastic._loop import run, run_fn
from rueda.elastic._state import ObjectState, State

__all__ = ["HostUpdateResult", "ObjectState", "State", "notification_manager", "run", "run_fn"]
