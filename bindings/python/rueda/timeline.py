"""The timeline from inside a program: start and stop it, put marks into it, join files of ranks.

>>> from rueda.torch import timeline
>>> timeline.start_timeline("trace.{rank}.json")
>>> with timeline.span("evaluation"):
...     evaluate(model)
>>> timeline.stop_timeline()

What is in a file and how to look at it: docs/timeline.md.
"""

import contextlib
import gzip
import json
import os
import zlib

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
        Emptied if it exists. What ends in ``.pftrace`` or ``.perfetto-trace``, and ``.gz`` behind that if
        it shall be compressed, is a trace of Perfetto's, in tracks; everything else is JSON.
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
        Files of one job, of one form: JSON arrays, or Perfetto's packets; else ValueError names the file.
    into : str or os.PathLike
        Must be none of them, and of their form; compressed if it ends in ``.gz``.
    """
    paths, into = [os.fspath(path) for path in paths], os.fspath(into)
    forms = {_is_perfetto(path) for path in [*paths, into]}
    if len(forms) > 1:
        raise ValueError("timelines of one form can be merged: all JSON, or all .pftrace or .perfetto-trace")
    if forms == {True}:
        parts = [_packets(path) for path in paths]
        with _opener(into)(into, "wb") as file:
            file.writelines(parts)
        return
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


def _is_perfetto(path):
    return path.removesuffix(".gz").endswith((".pftrace", ".perfetto-trace"))


def _opener(path):
    return gzip.open if path.endswith(".gz") else open


def _packets(path):
    """The bytes of a file of Perfetto's packets."""
    with _opener(path)(path, "rb") as file:
        try:
            data = file.read()
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is no timeline: {error}") from error
    at = 0
    while at < len(data):
        length, shift, begin = 0, 0, at
        at += 1
        while at < len(data) and shift < 64:
            length |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        at += length
        if data[begin] != 0x0A or shift == 0 or at > len(data):
            raise ValueError(f"{path} is no timeline: no packet begins at byte {begin}, or it is cut off")
    return data
