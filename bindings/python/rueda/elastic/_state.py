"""What an elastic job keeps of its training: saved at commits, brought back after a loss, given to newcomers."""

import functools
import queue

from rueda._runtime import runtime
from rueda.common.exceptions import HostsUpdatedInterrupt
from rueda.elastic._changes import HostUpdateResult, changes_of, serial_of
from rueda.elastic._points import points

__all__ = ["ObjectState", "State"]


def _counted(save):
    """A class's `save`, which counts when it has come back; as one, if it calls that of its base."""

    @functools.wraps(save)
    def counting(self, *args, **kwargs):
        is_outer, self._is_saving = not self._is_saving, True
        try:
            result = save(self, *args, **kwargs)
        finally:
            self._is_saving = not is_outer
        if is_outer:
            self._commits += 1
            self._alone += 1
        return result

    return counting


def _whole(sync):
    """A class's `sync`, which counts as saved when all of it has come back, whatever a subclass adds to that of its base.

    Until then what was saved stays, so that a loss in between leaves it whole: of one commit, and the same on all that count it.
    """

    @functools.wraps(sync)
    def syncing(self, *args, **kwargs):
        is_outer, self._is_syncing = not self._is_syncing, True
        try:
            result = sync(self, *args, **kwargs)
        finally:
            self._is_syncing = not is_outer
        if is_outer:
            self._synced()
        return result

    return syncing


class State:
    """Base of all: subclasses say how to `save`, `restore` and `sync`.

    What is not Horovod's has names that begin with an underscore: all others are the script's.

    Parameters
    ----------
    bcast_object : callable
        Gives every rank the object of rank 0.
    get_rank : callable
        This rank's number.
    """

    _commits = 0  # saves, those by `commit` and others: who has more has a newer state; it comes with what is synchronized
    _alone = 0  # of them, those by `save` since all ranks had the same number: they need not have made them together
    _is_saving = _is_syncing = False
    _is_as_saved = False  # it was saved or restored a moment ago, and the training function has not gone on since
    _is_guarded = False  # a loss costs a commit another vote, and not the training function (rueda.elastic._points)
    _replicas = None  # of one that is guarded: `Replicas`
    _word = 0  # the newest announcement that any rank had seen, in the newest vote
    _healed_at = None  # the ranks have changed, and the function went on: a check behind this point interrupts it

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "save" in vars(cls):
            cls.save = _counted(cls.save)
        if "sync" in vars(cls):
            cls.sync = _whole(cls.sync)

    def __init__(self, bcast_object, get_rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions that are called when the ranks have changed, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """The ranks have changed: forgets what was announced, then `reset`, then the callbacks."""
        self._host_messages = queue.Queue()
        self._healed_at = None
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """Notes that hosts are about to change; the next check interrupts all ranks."""
        self._host_messages.put((timestamp, update_res))

    def commit(self):
        """Saves, then checks for changes. All ranks must call it in the same step."""
        self._save_uncounted()
        self._commits += 1
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            self._committed()
            # A loss that was healed there has served what was announced before, and others heard of nothing else.
            served = self._is_guarded and serial_of(self._word) <= serial_of(runtime.epoch.announced)
            if not served or self._is_reset_due():
                self._is_as_saved = True
                raise interrupt
            return
        self._committed()
        if self._is_reset_due():
            self._is_as_saved = True
            raise HostsUpdatedInterrupt(True)

    def _save_uncounted(self):
        """`save`, as a part of what all ranks do together."""
        counted = self._commits, self._alone
        self.save()
        self._commits, self._alone = counted

    def _agreed(self, commits):
        """All ranks have the same state, and this number of commits."""
        self._commits, self._alone = commits, 0

    def check_host_updates(self):
        """HostsUpdatedInterrupt on all ranks, or on none, if any has heard that hosts are about to change."""
        epoch = runtime.epoch
        seen = self._last_updated_timestamp
        newest, changes = self._read_messages(seen)
        if epoch is not None and epoch.elastic:
            # When the vote returns all ranks have saved.
            self._word = points.repeat(lambda vote: vote()) if self._is_guarded else runtime.commit_vote()
            if serial_of(self._word) > serial_of(runtime.epoch.announced) and self._may_change():
                raise HostsUpdatedInterrupt(changes_of(self._word) == HostUpdateResult.removed)
            if self._is_reset_due():
                raise HostsUpdatedInterrupt(True)
            return
        # Without a launcher that tells: what Horovod's do, with whoever calls `on_hosts_updated`.
        seen, self._last_updated_timestamp, changes = self._bcast_object((seen, newest, changes))
        if self._last_updated_timestamp > seen:
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def _read_messages(self, newest):
        changes = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update_res = self._host_messages.get()
            if timestamp > newest:
                newest, changes = timestamp, changes | update_res
        return newest, changes

    def save(self):
        """Keeps the state as it is, in this rank's memory."""
        raise NotImplementedError()

    def restore(self):
        """The state as it was saved last."""
        raise NotImplementedError()

    def sync(self):
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError()

    def _synced(self):
        """`sync` has come back, with that of subclasses: now it counts as saved. For a class whose `save` is not all of it."""

    def _on_healed(self, point):
        """A rank was lost, and the training function goes on: what depends on the ranks is reset at the next commit.

        ``point``: the number that the ranks who are furthest have passed. The commit behind that is the next on all.
        """
        is_due = self._depends_on_ranks() or (self._replicas is not None and self._replicas.would_gain())
        self._healed_at = point if is_due else None

    def _depends_on_ranks(self):
        """Whether `on_reset` does anything; the same on all ranks."""
        return bool(self._reset_callbacks) or type(self).reset is not State.reset

    def _is_reset_due(self):
        return self._healed_at is not None and points.passed > self._healed_at

    def _committed(self):
        """All ranks have made this commit: for what keeps it elsewhere."""

    def _load_checkpoint(self, alone=False):
        """Before anybody has trained: the newest commit that an earlier job has kept; all ranks call it.

        ``alone``: this rank joins a running job, and cannot talk to others yet. Returns whether there was one; it then
        counts as saved.
        """
        return False

    def _prepare(self):
        """This rank is about to join the others, who train: whatever they would have to wait for else; not collective."""

    def _expect_sync(self):
        """What was saved is what there is now, and a `sync` follows in the next epoch, which this rank is about to enter."""

    def _entered(self):
        """The ranks are fewer, and those that are left go on with what they have, without a sync; all call it."""

    def _verified(self):
        """Whether what was saved is whole, so that others may have it."""
        return True

    def _layout(self):
        """Digest of what it consists of, the same on all ranks: for the launcher to compare; nothing where it does not say."""
        return b""

    def _may_change(self):
        """Whether ranks may come and go where this state stands; the same on all ranks."""
        return True

    def _mirrors(self):
        """Members that have a copy of what this rank has for itself alone: it does not leave in order together with them."""
        return ()

    def reset(self):
        """The ranks have changed: for what depends on rank and size."""


class ObjectState(State):
    """Of plain Python objects, given as keywords, which become attributes; they travel as one."""

    def __init__(self, bcast_object, get_rank, **kwargs):
        self._bcast_object = bcast_object
        self._saved_state = kwargs
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self):
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self):
        self._set_attrs()

    def sync(self):
        """Rank 0's objects as they are now; they count as saved.

        The last good state stays saved until all have come.
        """
        if self._saved_state:
            mine = {name: getattr(self, name) for name in self._saved_state}
            self._set_attrs(self._bcast_object(mine))

    def _synced(self):
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def _set_attrs(self, values=None):
        for name, value in (self._saved_state if values is None else values).items():
            setattr(self, name, value)
