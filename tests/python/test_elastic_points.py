"""The points of guarded training on a runtime that is played: what a rank does with its results when a loss comes between."""

import types

import pytest
from rueda.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.elastic import ObjectState, _points, _state
from rueda.elastic._points import LEFT, Points, Unwound


class Played:
    """A runtime whose votes fail as often as is said, and whose other ranks have passed so many points."""

    def __init__(self, failures, newest, ended=True):
        self.failures, self.newest, self.ended, self.entered = failures, newest, ended, 0
        self.epoch = types.SimpleNamespace(announced=0, elastic=True)
        self.place, self.others_depend = types.SimpleNamespace(rank=1), None

    def commit_vote(self):
        if self.failures:
            self.failures -= 1
            raise HorovodInternalError("lost")
        return 7

    def next_epoch(self, *arguments, **standing):
        self.entered += 1

    def epoch_ended(self, seconds):
        return self.ended

    def largest(self, name, number):
        if name == "rueda.elastic.depends_on_ranks":  # first of those that do, then of those that do not
            depends, self.others_depend = self.others_depend, not self.others_depend
            return max(number, 3 if depends else 0)
        newest = self.newest.pop(0)
        if newest is None:
            raise HorovodInternalError("lost, too")
        return max(number, newest)


def play(monkeypatch, attempt, failures, *newest, callbacks=False, others_callbacks=False, **options):
    played, points = Played(failures, list(newest), **options), Points()
    played.others_depend = others_callbacks
    monkeypatch.setattr(_points, "runtime", played)
    state = ObjectState(lambda value: value, lambda: 0)
    state.register_reset_callbacks([print] * callbacks)
    points.begin(state)
    return points, played, points.repeat(attempt)


def attempts(log):
    """One that notes when it has begun, and when it is applied."""

    def attempt(vote):
        log.append("reduce")
        word = vote()
        log.append("apply")
        return word

    return attempt


def test_without_a_loss_it_is_done_once(monkeypatch):
    log = []
    _, played, word = play(monkeypatch, attempts(log), 0)
    assert log == ["reduce", "apply"] and word == 7 and played.entered == 0


def test_results_are_made_again_when_nobody_has_come_through_the_vote(monkeypatch):
    log = []
    _, played, word = play(monkeypatch, attempts(log), 1, 0)
    assert log == ["reduce", "reduce", "apply"] and word == 7 and played.entered == 1


def test_results_are_applied_when_somebody_has_come_through_the_vote(monkeypatch):
    log = []
    points, played, word = play(monkeypatch, attempts(log), 1, 1)
    assert log == ["reduce", "apply"] and word == 0 and points.passed == 1


def test_another_loss_in_the_heal_is_healed_and_the_decision_is_the_later_epochs(monkeypatch):
    log = []
    _, played, _ = play(monkeypatch, attempts(log), 1, None, 1)
    assert log == ["reduce", "apply"] and played.entered == 2


def test_all_leave_for_who_has_left(monkeypatch):
    with pytest.raises(Unwound):
        play(monkeypatch, attempts([]), 1, LEFT)


def test_who_has_no_results_cannot_go_forward(monkeypatch):
    def attempt(vote):
        raise HorovodInternalError("lost")

    with pytest.raises(RuntimeError, match="different orders"):
        play(monkeypatch, attempt, 0, 1)


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("done", [0, 1])
def test_callbacks_of_some_ranks_are_an_error_that_names_two(monkeypatch, mine, done):
    # Both ranks that stand in the vote and ranks that do it again must hear of it.
    has, lacks = (1, 2) if mine else (2, 1)
    with pytest.raises(RuntimeError, match=f"reset\\(\\) of its own on rank {has}, .* on rank {lacks}: register callbacks on all"):
        play(monkeypatch, attempts([]), 1, done, callbacks=mine, others_callbacks=not mine)


@pytest.mark.parametrize("all_have", [False, True])
def test_callbacks_of_all_ranks_or_none_are_none(monkeypatch, all_have):
    _, played, word = play(monkeypatch, attempts([]), 1, 0, callbacks=all_have, others_callbacks=all_have)
    assert word == 7 and played.entered == 1


def test_an_error_that_ended_no_epoch_goes_up(monkeypatch):
    with pytest.raises(HorovodInternalError, match="lost"):
        play(monkeypatch, attempts([]), 1, ended=False)


def test_all_are_interrupted_at_the_same_commit_after_a_heal(monkeypatch):
    # One has come through the vote of its first commit, the other stands in it: the next commit interrupts both.
    interrupted = []
    for passed, failures, newest in ((1, 1, [1]), (0, 1, [1])):
        played, points = Played(failures, list(newest)), Points()
        state = ObjectState(lambda value: value, lambda: 0)
        state._is_guarded, played.epoch.announced, played.others_depend = True, 7 << 8, True
        state.register_reset_callbacks([print])
        for module in (_points, _state):
            monkeypatch.setattr(module, "runtime", played)
        monkeypatch.setattr(_state, "points", points)
        points.begin(state)
        points.passed = passed
        while not interrupted or interrupted[-1][0] is not state:
            try:
                state.commit()
            except HostsUpdatedInterrupt:
                interrupted.append((state, points.passed))
    assert [passed for _, passed in interrupted] == [2, 2]
