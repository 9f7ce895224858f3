"""Checkpoints of a job that commits: begun at commits, never waited for, and loaded where nobody has a state.

>>> keeper = Keeper("run7")
>>> first = keeper.resume(state) or 0  # all ranks, before anybody has trained
>>> keeper.committed(state, commits)  # all ranks, behind each commit
"""

import os
import warnings

from rueda._numbers import whole_number
from rueda._objects import allgather_object
from rueda.common.exceptions import HorovodInternalError
from rueda.torch.checkpoint import _saving
from rueda.torch.checkpoint._loading import resume_on
from rueda.torch.checkpoint._ranks import Alone, Ranks, agree, short


class Keeper:
    """Of one folder. All ranks of an epoch call it alike; a rank that came later has a new one.

    Parameters
    ----------
    folder : path
        As `save` has it.
    every : int
        Commits from one checkpoint to the next; more, where writing takes longer.
    keep : int or None
        As `save` has it.
    """

    def __init__(self, folder, *, every=1, keep=2):
        self._folder, self._every, self._keep = os.fspath(folder), whole_number("every", every, 1), keep
        self._ranks = None
        self._is_due = False  # a checkpoint, because the one before was still being written when it was its turn
        self._has_begun = False  # one at least

    def committed(self, state, commits):
        """Begins a checkpoint of a state that all ranks have just committed, if it is time. Returns whether it did.

        While a rank still writes the one before, nothing is begun; that is tried again at the next commit. What fails is
        told by a warning, since training can go on; but an error if nothing could be saved yet. HorovodInternalError
        goes up: a rank was lost.

        Parameters
        ----------
        state : mapping
            As `save` has it, with the values that were committed. Of samplers, what all ranks have processed is saved.
        commits : int
            How many there were; the same on all ranks. `resume` returns it.
        """
        ranks = Ranks()
        if self._ranks is None or self._ranks.have_changed():
            self._ranks, self._is_due = ranks, False  # as of a rank that has just come
        if commits % self._every != 0 and not self._is_due:
            return False
        what = f"no checkpoint was made in {self._folder}"
        said = agree(ranks, what, self._look)
        self._is_due = any(is_writing for is_writing, _, _ in said)
        self._has_begun = any(has_begun for _, has_begun, _ in said)
        for failure in [failure for _, _, failure in said if failure is not None][:1]:  # one is told by all ranks
            self._warn(failure)
        if self._is_due:
            return False
        try:
            whole = {name: _of_all_ranks(value, ranks) for name, value in state.items()}
            _saving.save(self._folder, whole, step=commits, keep=self._keep)
        except HorovodInternalError:
            raise
        except Exception as error:
            if not self._has_begun:
                raise
            self._warn(error)
            return False
        self._has_begun = True
        return True

    def resume(self, state, alone=False):
        """Loads the newest checkpoint that is whole, on all ranks. Returns its number of commits; None: there is none.

        ``alone``: on this one, without a word to others, which a rank that is not in an epoch yet cannot have. Not for
        models whose parameters are sharded.
        """
        return resume_on(Alone() if alone else Ranks(), self._folder, state)

    def _look(self):
        """Whether this rank still writes, whether it has begun one before, and how the last one failed."""
        if _saving.is_writing():
            return True, self._has_begun, None
        try:
            _saving.tell()
            return False, self._has_begun, None
        except RuntimeError as error:
            return False, self._has_begun, short(str(error))

    def _warn(self, failure):
        warnings.warn(f"a checkpoint was not made, and training goes on: {failure}", RuntimeWarning, stacklevel=3)


def _of_all_ranks(value, ranks):
    """A sampler, with what all ranks have processed of it; anything else as it is."""
    if not _is_sampler(value):
        return value
    state = value.state_dict()
    if ranks.size > 1:
        done = set().union(*(set(each) for each in allgather_object(state.get("processed_indices", ()))))
        if done:
            state = {**state, "processed_indices": done}
    return _Sampled(state)


def _is_sampler(value):
    has = hasattr(type(value), "processed_indices") or "processed_indices" in getattr(value, "__dict__", ())
    return has and hasattr(value, "load_state_dict")  # its indices may take long to compute


class _Sampled:
    def __init__(self, state):
        self._state = state

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        raise NotImplementedError("it is only saved")
