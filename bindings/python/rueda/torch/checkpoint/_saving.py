"""Saves: all ranks agree, copy their shares, and go on; a thread of each writes.

    training thread                            a thread of this rank
    agree on step and names
    rank 0: lock, a new folder
    open the own file, agree that all could
    copy the own share --------------------->  write, fsync; a mark in the folder: NAME, bytes, hash
    ... trains on                              rank 0: all marks there? manifest, fsync, rename; remove old ones

No collective leaves the thread: marks are files that rank 0 looks for, as all ranks must see one folder anyway.
"""

import atexit
import os
import sys

from rueda._numbers import whole_number
from rueda.torch.checkpoint import _folder
from rueda.torch.checkpoint._copying import layout_of
from rueda.torch.checkpoint._ranks import Ranks, agree
from rueda.torch.checkpoint._state import Flat
from rueda.torch.checkpoint._writing import Writing

_last = None  # the save that is under way, or whose end was not told


def save(folder, state, *, step, wait=False, keep=2, timeout=600.0):
    """Saves a state that all ranks have, each its part of it. All ranks must call it.

    Returns when this rank's part is copied: training may change the state while a thread writes it to files. If the save
    before still writes, this one waits for it first.

    Parameters
    ----------
    folder : path
        That all ranks see, of this job alone. It is made where there is none.
    state : mapping of str to anything
        Modules, optimizers, tensors, objects with ``state_dict()`` and ``load_state_dict()``, and plain values: numbers,
        strings, None, and lists, tuples, sets and dicts of them. Of what ranks may have of their own (buffers of
        modules, objects, plain values) the first rank's is saved.
    step : int
        By which a person, and `resume`, knows it.
    wait : bool
        Returns when the checkpoint is whole, on all ranks; its failure is raised here.
    keep : int or None
        So many of the newest whole checkpoints stay; older ones are removed when this one is whole. None: all stay.
    timeout : float
        Seconds that the first rank waits for the others' files.

    Raises
    ------
    ValueError, TypeError
        What cannot be saved; ranks that do not agree.
    OSError
        The folder cannot be used. BlockingIOError: another job saves there.
    RuntimeError
        Another rank could not; or the save before this one failed, which is told here. Checkpoints that were whole are.
    """
    global _last
    ranks, what = Ranks(), f"the state could not be saved to {folder}"
    folder = os.fspath(folder)
    flat, layout = _agreed_state(ranks, folder, state, step, keep, what)
    (temporary, *_) = agree(ranks, what, lambda: _begin(folder, step) if ranks.rank == 0 else None)
    temporary = os.path.join(folder, temporary)
    under_way = Writing(ranks, folder, temporary, int(step), flat, layout, float("inf") if keep is None else keep, timeout)
    try:
        agree(ranks, what, under_way.open)
    except BaseException:
        under_way.give_up()
        raise
    _last = under_way
    under_way.copy()
    if wait:
        _end(ranks)


def wait():
    """Waits until the last save has ended, on all ranks. All ranks must call it. Raises what kept it from being whole."""
    _end(Ranks())


def _end(ranks):
    agree(ranks, "the last save failed", tell)


def is_writing():
    """Whether this rank still writes what it saved last."""
    return _last is not None and _last.is_under_way()


def tell():
    """Waits for the end of the last save, and tells it, once."""
    global _last
    if _last is not None:
        _last.join()  # which may be interrupted: its memory is not the next one's before
        last, _last = _last, None
        last.tell()


@atexit.register
def _tell_at_the_end():
    """Of a process that did not ask: its threads have ended by now."""
    failed = _last and _last.failed()
    if failed:
        print(f"rueda: {failed}", file=sys.stderr, flush=True)


def _agreed_state(ranks, folder, state, step, keep, what):
    flat = layout = None

    def look():
        nonlocal flat, layout
        tell()
        number = whole_number("step", step, 0, 63)
        if keep is not None:
            whole_number("keep", keep, 1)
        flat = Flat(state)
        if ranks.rank != 0:
            _folder.unlock(folder)  # of one that was the first rank before
        layout = layout_of(flat, ranks)
        return [number, layout.digest, len(layout.forms)]

    said = agree(ranks, what, look)
    for rank, theirs in enumerate(said):
        if theirs[0] != said[0][0]:
            raise ValueError(f"{what}: rank 0 says step={said[0][0]}, rank {rank} step={theirs[0]}")
        if theirs != said[0]:
            raise ValueError(
                f"{what}: ranks have different states: the names, types or shapes of rank {rank}'s {theirs[2]} tensors are "
                f"not those of rank 0's {said[0][2]}"
            )
    return flat, layout


def _begin(folder, step):
    """Of the first rank: makes the folder that all write to, and returns its name."""
    os.makedirs(folder, exist_ok=True)
    _folder.lock(folder)
    name = f"{_folder.numbered(folder):06d}-step-{step}.new"
    _folder.remove_leftovers(folder)
    os.mkdir(os.path.join(folder, name))
    return name
