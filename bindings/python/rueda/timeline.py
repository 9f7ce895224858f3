"""The timeline from inside a program: start and stop it, put marks into it, join files of ranks.

>>> from rueda.torch import timeline
>>> timeline.start_timeline("trace.{rank}.json")
>>> with timeline.span("evaluation"):
...     evaluate(model)
>>> timeline.stop_timeline()

What is in a file and how to look at it: docs/timeline.md.
"""

import contextlib
import json

from rueda import _marks
from rueda._runtime import runtime

__all__ = ["instant", "merge", "span", "start_timeline", "stop_timeline"]


def start_timeline(file_path, mark_cycles=False):
    """Writes a timeline from here on, until `stop_timeline` or ``shutdown``.

    Rank 0 writes it, in the format that Horovod's tools read; with ``{rank}`` in the path, or under
    ``RUEDA_TIMELINE_ALL_RANKS``, every rank that calls this writes its own, in tracks, on one clock
    (`merge` joins them). An open timeline is ended first; starting
    the one that is open changes nothing but its cycle marks. ``RUEDA_TIMELINE`` need not be set.

    Parameters
    ----------
    file_path : str or os.PathLike
        Emptied if it exists.
    mark_cycles : bool
        Marks the rounds in which something begins with ``CYCLE_START``.

    Raises
    ------
    ValueError
        Not initialised, or no file of this name can be written.
    """
    runtime.start_timeline(file_path, mark_cycles)


def stop_timeline():
    """Ends the timeline; the file is complete when this returns. Nothing happens without one.

    ValueError when not initialised.
    """
    runtime.stop_timeline()


@contextlib.contextmanager
def span(name):
    """Shows what runs inside as ``name``, in the track "marks". Costs nearly nothing when off.

    The names "backward" and "optimizer step" are for training loops without `DistributedOptimizer`:
    they have tracks of their own and are summed up by ``ruedarun --summary``.
    """
    _marks.begin(name)
    try:
        yield
    finally:
        _marks.end(name)


def instant(name):
    """Shows a moment of this name, in the track "marks"."""
    _marks.instant(name)


def merge(paths, into):
    """Joins timelines of several ranks, made with ``{rank}`` in their name, into one file.

    ``ruedarun --timeline FILE --timeline-all-ranks`` does it by itself.

    Parameters
    ----------
    paths : iterable of str or os.PathLike
        Files of one job; each a JSON array, else ValueError names it.
    into : str or os.PathLike
        Must be none of them.
    """
    events = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            try:
                part = json.load(file)
            except ValueError as error:
                raise ValueError(f"{path} is no timeline: {error}") from error
        if not isinstance(part, list):
            raise ValueError(f"{path} is no timeline: it holds no JSON array")
        events += part
    with open(into, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
