"""Runs a training function again and again, epoch of membership after epoch, until it has returned.

    epoch ──branch──> checkpoint? ──> sync? ──> func(state) ──> its result
      ^                            │ a rank was lost │ hosts are about to change
      └── callbacks <── restore? <──branch── next epoch

What is done with the state is said by the epoch, the same for all ranks; nothing is decided here. An error
that did not end the epoch (ranks that disagree, say) goes up: it would come again.
"""

import functools

from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.elastic._changes import notification_manager
from rueda.elastic._points import (
    EPOCH_ENDED,
    FRESH,
    GO_ON,
    INTERRUPTED,
    LEFT,
    READY,
    RESTORE,
    SYNC,
    Unwound,
    enter,
    is_loss,
    meet,
    points,
)


def run_fn(func, reset):
    """``func(state, ...)``, called until it returns.

    Parameters
    ----------
    func : callable
        Its first argument is a `State`.
    reset : callable
        Called between epochs, once this rank is in the new one; Horovod's left and joined the job there.
    """

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            return _run(func, reset, state, args, kwargs)
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def run(func):
    """Decorates a training function whose first argument is a `State`; it then survives changes of ranks.

    In a job that is not elastic the function runs once, and errors go up.
    """
    return run_fn(func, reset)


def reset():
    """What `run` calls between epochs: nothing, as this rank has left the last one and entered the next by then."""


def _run(func, reset, state, args, kwargs):
    epoch = runtime.epoch
    if epoch is None or not epoch.elastic:
        state._load_checkpoint()
        state.sync()
        return func(state, *args, **kwargs)
    holds = not epoch.provisional and epoch.number > 1 and epoch.branch != FRESH
    if epoch.provisional:
        holds = state._load_checkpoint(alone=True)  # asked for if nobody is left who has trained
        state._prepare()
        enter(READY, holds, state)
    changed, has_met = epoch.provisional, False
    while True:
        syncs = False
        try:
            if runtime.epoch.number > 1 and not has_met:
                meet(LEFT)
            has_met = False
            branch = runtime.epoch.branch
            is_later = not changed and _finished.commits is not None
            if is_later and branch != FRESH:
                branch = SYNC  # the epoch is older than this call: its branch was that of another state
            if changed:
                if branch == RESTORE and holds:  # a newcomer has nothing to go back to
                    state.restore()
                    state._is_as_saved = True
                reset()
                state.on_reset()
            if branch == FRESH:
                state._load_checkpoint()
            if branch == GO_ON:
                state._entered()
            else:
                state.sync()
                state._agreed(_commits_of_all(state, is_later))
            holds = True  # a state that all have agreed on
            points.begin(state)
            state._is_as_saved = False
            result = func(state, *args, **kwargs)
            _finished.commits = max(_finished.commits or 0, state._commits)
            return result
        except Unwound:
            changed = has_met = True
            continue
        except HorovodInternalError as error:
            if not is_loss(error):
                raise
            cause = EPOCH_ENDED
        except HostsUpdatedInterrupt as interrupt:
            cause, syncs = INTERRUPTED, state._is_as_saved and not interrupt.skip_sync
        finally:
            points.end()
        enter(cause, holds, state, syncs)
        changed = True


class _finished:
    """The functions of this process that have returned."""

    commits = None  # the most that a state of theirs had; None: none has returned


def _commits_of_all(state, is_later):
    """The number of rank 0's newest commit, which all ranks have now; it goes on from function to function."""
    if is_later:
        return max(state._commits, _finished.commits)
    epoch = runtime.epoch
    return state._commits if epoch.branch == FRESH else epoch.target
