"""Places of a training function at which the loss of a rank costs a repetition, and not the function: guarded steps and commits.

All ranks pass the same points in the same order. At each they do something together whose results are kept aside, and
then vote; a rank that has come through the vote knows that all have entered it, so that all have the results, and
applies its own. When a rank is lost, those that are left enter the next epoch where they are, and tell each other how
many points they have passed:

    somebody has passed one more    it was complete: who stands in its vote applies it, too
    nobody has                      it is done again, by the ranks that there are now
    somebody has left its function  all leave theirs: for a newcomer, or who was in no point when it heard of the loss
"""

from rueda._runtime import runtime
from rueda.common.exceptions import HorovodInternalError

EPOCH_ENDED, INTERRUPTED, READY = 1, 2, 4  # proto/messages.h: EnterCause
FRESH, RESTORE, SYNC, GO_ON = range(4)  # proto/messages.h: EpochBranch

# How long the word may take that a rank is lost, after an operation has failed: of one that left in order it comes when
# its process has ended.
VERDICT_SECONDS = 30

LEFT = 1 << 62  # instead of a number of points: this rank is in no training function


class Unwound(HorovodInternalError):
    """The training function is left; this rank is in the next epoch already, and has met the others there."""


class _Again(Exception):
    """The vote of a point will not come: the ranks are others."""


class Points:
    """Of the training function that runs in this process, if any. Threads: the one that trains."""

    def __init__(self):
        self.state = None  # that it trains
        self.is_healing = False  # the next epoch is entered, and the function goes on in it
        self.on_unwinding = []  # called without arguments when it is left instead
        self._is_spoilt = False
        self.passed = 0

    def begin(self, state):
        """A function begins on all ranks."""
        self.state, self.passed = state, 0
        if state._replicas is not None:
            state._replicas.begin()

    def end(self):
        self.state = None

    def spoil(self):
        """While it is healed: the function cannot go on, because of what is lost."""
        self._is_spoilt = True

    def repeat(self, attempt):
        """One point: returns what ``attempt(vote)`` does, which is called again as long as a loss comes between.

        It calls ``vote`` when it has its results, and applies them when that has returned; before that it leaves
        everything as it was.
        """
        while True:
            try:
                result = attempt(self._vote)
                self.passed += 1
                return result
            except _Again:
                pass
            except Unwound:
                raise
            except HorovodInternalError as error:
                self._heal(error, False)

    def _vote(self):
        """Returns the newest announcement that any rank has seen, or 0."""
        try:
            return runtime.commit_vote()
        except HorovodInternalError as error:
            if self._heal(error, True):
                return 0
            raise _Again() from None

    def _heal(self, error, is_done):
        """Into the next epoch. Returns whether somebody has passed this point; ``is_done``: this rank has its results."""
        if self.state is None:
            raise error
        while True:
            if not is_loss(error):
                raise error
            self.is_healing, self._is_spoilt = True, False
            try:
                enter(EPOCH_ENDED, True, self.state)
            finally:
                self.is_healing = False
            if self.state._replicas is not None and not self.state._replicas.follow():
                self.spoil()
            try:
                newest = meet(LEFT if self._is_spoilt else self.passed)
                if newest != LEFT:  # all go on in their functions
                    _require_same_answer(self.state._depends_on_ranks())
                break
            except HorovodInternalError as another:
                error = another
        if newest == LEFT:
            for tell in self.on_unwinding:
                tell()
            raise Unwound("ranks have come, or were not in a guarded step: training goes on from the newest commit")
        if newest > self.passed and not is_done:
            raise RuntimeError("ranks call guarded steps and commits in different orders: they have to be the same on all")
        self.state._on_healed(newest)
        return newest > self.passed


points = Points()


def meet(number):
    """The largest number of all ranks, in a new epoch."""
    return runtime.largest("rueda.elastic.meet", number)


def _require_same_answer(depends_on_ranks):
    """RuntimeError on all ranks, unless the state of all depends on the ranks or of none: the next commit interrupts all or none."""
    name, me = "rueda.elastic.depends_on_ranks", 1 + runtime.place.rank
    one_that_does = runtime.largest(name, me if depends_on_ranks else 0)
    one_that_does_not = runtime.largest(name, 0 if depends_on_ranks else me)
    if one_that_does and one_that_does_not:
        raise RuntimeError(
            f"a guarded state has reset callbacks, a sampler or a reset() of its own on rank {one_that_does - 1}, and none of "
            f"them on rank {one_that_does_not - 1}: register callbacks on all ranks, or on none"
        )


def is_loss(error):
    """Whether an operation failed because a rank was lost, so that the epoch has ended: all hear that."""
    # Ranks disagree: who raised that first may have ended by now, and count as lost.
    return not error.ranks_disagree and runtime.epoch_ended(VERDICT_SECONDS)


def enter(cause, holds, state, syncs=False):
    """Into the next epoch. SystemExit with code 0 where the job goes on without this rank.

    ``holds``: the state is one that all ranks have agreed on. ``syncs``: it was saved a moment ago, and others are likely to get it.
    """
    commits = state._commits if holds else 0
    has_state = holds and state._verified()
    if syncs and has_state:
        state._expect_sync()
    runtime.next_epoch(cause, has_state=has_state, commits=commits, layout=state._layout(), mirrors=state._mirrors())
