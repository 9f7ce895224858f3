"""The loop of `rueda.elastic`, on a runtime that is played: what is called, in which order, for each way an epoch ends."""

import types

import pytest
from rueda.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.elastic import HostUpdateResult, ObjectState, State, _loop, _points, _state, notification_manager, run_fn


class Played:
    """A runtime whose epochs are given; writes down how they are entered."""

    def __init__(self, log, *branches, elastic=True, provisional=False, ended=True):
        self.log, self.branches, self.ended, self.word = log, list(branches), ended, 0
        self.number, self.elastic = 0, elastic
        self._next()
        self.epoch.provisional = provisional

    def _next(self):
        self.number += 1
        self.epoch = types.SimpleNamespace(
            number=self.number, branch=self.branches.pop(0), elastic=self.elastic, provisional=False, target=0, announced=0
        )

    def next_epoch(self, cause, has_state, commits, layout, mirrors):
        self.log.append(("enter", cause, has_state))
        self._next()

    def epoch_ended(self, seconds):
        return self.ended

    def commit_vote(self):
        return self.word

    def largest(self, name, number):
        return number


class Logged(State):
    def __init__(self, log):
        super().__init__(lambda value: value, lambda: 0)
        self.log, self.errors = log, []

    def __getattribute__(self, name):
        if name in ("save", "restore", "reset", "_prepare", "_entered", "_expect_sync"):
            return lambda: self.log.append(name)
        return super().__getattribute__(name)

    def sync(self):
        self.log.append("sync")
        if self.errors:
            raise self.errors.pop(0)


def play(monkeypatch, ends, *branches, errors=(), **options):
    """The log of a job whose function ends in these ways: an exception, a result, or what a function does with the state."""
    log, ends = [], list(ends)
    played = Played(log, *branches, **options)
    monkeypatch.setattr(_loop, "runtime", played)
    monkeypatch.setattr(_points, "runtime", played)
    monkeypatch.setattr(_state, "runtime", played)
    monkeypatch.setattr(_loop._finished, "commits", None)
    state = Logged(log)
    state.errors = list(errors)
    state.register_reset_callbacks([lambda: log.append("callback")])

    def train(state):
        log.append("train")
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end(state) if callable(end) else end

    try:
        assert run_fn(train, lambda: log.append("reset of the job"))(state) == "done"
    finally:
        assert not notification_manager._listeners
        play.log = log
    return log


AGAIN = ["reset of the job", "reset", "callback"]
FRESH, RESTORE, SYNC, GO_ON = _loop.FRESH, _loop.RESTORE, _loop.SYNC, _loop.GO_ON


def test_after_a_loss_the_state_is_restored_before_the_callbacks_and_then_synchronized(monkeypatch):
    log = play(monkeypatch, [HorovodInternalError(), "done"], FRESH, RESTORE)
    assert log == ["sync", "train", ("enter", _loop.EPOCH_ENDED, True), "restore", *AGAIN, "sync", "train"]


@pytest.mark.parametrize("skip_sync", [False, True])
@pytest.mark.parametrize("branch, then", [(SYNC, ["sync"]), (GO_ON, ["_entered"])])
def test_after_an_interrupt_the_epoch_says_whether_to_synchronize(monkeypatch, skip_sync, branch, then):
    log = play(monkeypatch, [HostsUpdatedInterrupt(skip_sync), "done"], FRESH, branch)
    assert log == ["sync", "train", ("enter", _loop.INTERRUPTED, True), *AGAIN, *then, "train"]


@pytest.mark.parametrize("skip_sync, then", [(False, ["_expect_sync"]), (True, [])])
def test_a_sync_is_expected_behind_a_commit_that_brings_ranks(monkeypatch, skip_sync, then):
    def committed(state):
        state._is_as_saved = True
        raise HostsUpdatedInterrupt(skip_sync)

    log = play(monkeypatch, [committed, "done"], FRESH, SYNC)
    assert log == ["sync", "train", *then, ("enter", _loop.INTERRUPTED, True), *AGAIN, "sync", "train"]


def test_an_error_that_ended_no_epoch_goes_up(monkeypatch):
    with pytest.raises(HorovodInternalError, match="shapes"):
        play(monkeypatch, [HorovodInternalError("shapes")], FRESH, ended=False)
    assert play.log == ["sync", "train"]


def test_a_loss_within_sync_is_healed_and_a_newcomer_holds_nothing_before_one(monkeypatch):
    log = play(monkeypatch, ["done"], FRESH, SYNC, RESTORE, provisional=True, errors=[HorovodInternalError()])
    enters = [("enter", _loop.READY, False), ("enter", _loop.EPOCH_ENDED, False)]
    assert log == ["_prepare", enters[0], *AGAIN, "sync", enters[1], *AGAIN, "sync", "train"]


def test_a_job_that_is_not_elastic_runs_once(monkeypatch):
    with pytest.raises(HorovodInternalError):
        play(monkeypatch, [HorovodInternalError()], FRESH, elastic=False)
    assert play.log == ["sync", "train"]


def test_a_commit_saves_before_the_vote_that_interrupts(monkeypatch):
    log = []
    played = Played(log, FRESH)
    monkeypatch.setattr(_state, "runtime", played)
    monkeypatch.setattr(_loop._finished, "commits", None)
    state = Logged(log)
    state.commit()
    for changes in (HostUpdateResult.removed, HostUpdateResult.added, HostUpdateResult.mixed):
        played.word = 1 << 8 | changes
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        assert caught.value.skip_sync == (changes == HostUpdateResult.removed)
    assert log == ["save"] * 4 and state._commits == 4


class Counted(State):
    """As a script may have one: it says what to save, and nothing of numbers."""

    def save(self):
        self.saved = vars(self).get("saved", 0) + 1


class CountedTwice(Counted):
    def save(self):
        super().save()
        if self.saved == 5:
            raise OSError("no room")


def test_saves_count_with_commits_or_without_and_those_of_a_base_class_once(monkeypatch):
    monkeypatch.setattr(_state, "runtime", Played([], FRESH))
    for state in (Counted(lambda value: value, lambda: 0), CountedTwice(lambda value: value, lambda: 0)):
        state.commit()
        state.save()
        assert state._commits == 2 and state._alone == 1
        state.commit()
        state.check_host_updates()
        assert state._commits == 3 and state._commits - state._alone == 2  # of commits alone, which checkpoints go by
        state._agreed(40)
        state.save()
        assert state._commits == 41 and state._commits - state._alone == 40
    with pytest.raises(OSError):
        state.save()
    assert state._commits == 41
    state.save()
    assert state._commits == 42


def test_a_script_may_count_its_commits_itself(monkeypatch):
    monkeypatch.setattr(_state, "runtime", Played([], FRESH))
    state = ObjectState(lambda value: value, lambda: 0, commits=0, layout="flat", prepare=1)
    state.commits += 1
    state.commit()
    assert (state.commits, state._commits) == (1, 1)
    state.commits = 40
    state.restore()
    assert (state.commits, state.layout, state.prepare) == (1, "flat", 1)


def test_who_has_saved_without_a_commit_says_so_when_a_rank_is_lost(monkeypatch):
    standings, ends = [], [HorovodInternalError(), "done"]
    played = Played([], FRESH, RESTORE)
    enter = played.next_epoch
    played.next_epoch = lambda cause, has_state, commits, *more, **rest: standings.append(commits) or enter(cause, has_state, commits, *more, **rest)
    for module in (_loop, _points, _state):
        monkeypatch.setattr(module, "runtime", played)
    monkeypatch.setattr(_loop._finished, "commits", None)
    state = ObjectState(lambda value: value, lambda: 0, step=0)

    def train(state):
        state.commit()
        state.save()
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end

    run_fn(train, lambda: None)(state)
    assert standings == [2]


def test_objects_come_back_and_what_was_synchronized_counts_as_saved():
    state = ObjectState(lambda mine: {**mine, "batch": 7}, lambda: 0, batch=1, epoch=2)
    state.epoch = 5
    state.sync()
    state.batch = state.epoch = 0
    state.restore()
    assert (state.batch, state.epoch) == (7, 5)


def test_what_a_subclass_synchronizes_itself_counts_with_the_rest_or_not_at_all():
    class More(ObjectState):
        is_lost = True

        def sync(self):
            super().sync()
            if self.is_lost:
                raise HorovodInternalError()
            self.epoch = 9

    state = More(lambda mine: {**mine, "batch": 7}, lambda: 0, batch=1, epoch=2)
    with pytest.raises(HorovodInternalError):
        state.sync()
    state.restore()  # what it counts as it did before
    assert (state.batch, state.epoch) == (1, 2)
    state.is_lost = False
    state.sync()
    state.batch = state.epoch = 0
    state.restore()
    assert (state.batch, state.epoch) == (7, 9)


def test_a_second_function_syncs_its_state_whatever_the_epoch_said_of_the_first(monkeypatch):
    log = []
    played = Played(log, _loop.FRESH, _loop.GO_ON)
    for module in (_loop, _points):
        monkeypatch.setattr(module, "runtime", played)
    monkeypatch.setattr(_loop._finished, "commits", None)
    ends = [HostsUpdatedInterrupt(True), "first", "second"]

    def train(state):
        log.append("train")
        state._commits += 5
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    run = run_fn(train, lambda: None)
    assert run(Logged(log)) == "first"
    assert log == ["sync", "train", ("enter", _points.INTERRUPTED, True), "reset", "_entered", "train"]
    log.clear()
    second = Logged(log)
    assert run(second) == "second"
    assert log == ["sync", "train"] and second._commits == 15  # what the first had made goes on
