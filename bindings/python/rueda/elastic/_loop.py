"""Runs a training function again and again, epoch of membership after epoch, until it has returned.

    epoch ──branch──> sync? ──> func(state) ──> its result
      ^                            │ a rank was lost │ hosts are about to change
      └── callbacks <── restore? <──branch── next epoch

What is done with the state is said by the epoch, the same for all ranks; nothing is decided here. An error
that did not end the epoch (ranks that disagree, say) goes up: it would come again.
"""

import functools

from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.elastic._changes import notification_manager

# proto/messages.h: EnterCause, EpochBranch.
EPOCH_ENDED, INTERRUPTED, READY = 1, 2, 4
FRESH, RESTORE, SYNC, GO_ON = range(4)

# How long the word may take that a rank is lost, after an operation has failed: of one that left in order it comes when
# its process has ended.
VERDICT_SECONDS = 30


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
    return run_fn(func, _nothing)


def _nothing():
    """The runtime resets itself when it enters an epoch."""


def _run(func, reset, state, args, kwargs):
    epoch = runtime.epoch
    if epoch is None or not epoch.elastic:
        state.sync()
        return func(state, *args, **kwargs)
    holds = not epoch.provisional and epoch.number > 1 and epoch.branch != FRESH
    if epoch.provisional:
        _enter(READY, False, state)
    changed = epoch.provisional
    while True:
        try:
            branch = runtime.epoch.branch
            if changed:
                if branch == RESTORE and holds:  # a newcomer has nothing to go back to
                    state.restore()
                reset()
                state.on_reset()
            if branch != GO_ON:
                state.sync()
                state.commits = _commits_of_all(state)
            holds = True  # a state that all have agreed on
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            # Who raised it first may have ended by now, and count as lost.
            if error.ranks_disagree or not runtime.epoch_ended(VERDICT_SECONDS):
                raise
            cause = EPOCH_ENDED
        except HostsUpdatedInterrupt:
            cause = INTERRUPTED
        _enter(cause, holds, state)
        changed = True


def _commits_of_all(state):
    """The number of rank 0's newest commit, which all ranks have now."""
    target = runtime.epoch.target
    return target if target else state.commits


def _enter(cause, holds, state):
    """Into the next epoch. SystemExit with code 0 where the job goes on without this rank."""
    runtime.next_epoch(cause, has_state=holds and state.verified(), commits=state.commits, layout=_layout(state))


def _layout(state):
    """Digest of what the state consists of; nothing where it does not say."""
    digest = getattr(state, "layout", None)
    return digest() if callable(digest) else b""
