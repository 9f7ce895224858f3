"""What became of a function on ranks that Ray or Spark has started, and whom the failure of several names.

A rank's exception comes back as a value, because the engines would end or repeat the others' work otherwise.
"""

import pickle
import sys
import traceback
from typing import Any, NamedTuple, Optional

from rueda.common.exceptions import HorovodInternalError, RankFailed, RankLostError


class Outcome(NamedTuple):
    """Of one rank. Of plain values only, so that it can be read wherever it comes to."""

    kind: str  # "result", "error", "dead" (its process), "missing" (not there in time)
    value: Any = None
    error: Optional[bytes] = None  # the pickled exception, if it can be pickled
    what: str = ""  # in one line
    trace: str = ""
    is_echo: bool = False  # says that another rank failed, or that it left
    lost: Optional[int] = None  # the rank that a RankLostError names
    cause: str = ""  # what that says of how it ended


def call(function, args=(), kwargs=None, pickler=pickle):
    """Calls it and says what became of it. After an exception the job is left, so that no rank waits for this one."""
    try:
        return Outcome("result", function(*args, **(kwargs or {})))
    except (Exception, SystemExit) as error:
        leave()
        return failure(error, pickler)


def leave():
    """Leaves the job if this process is in one."""
    if "rueda._runtime" in sys.modules:
        sys.modules["rueda._runtime"].runtime.shutdown()


def failure(error, pickler=pickle):
    """An exception as an outcome."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None  # the user's part
    lines = traceback.format_exception(type(error), error, inside)
    is_lost = isinstance(error, RankLostError)
    return Outcome(
        "error",
        error=_pickled(error, pickler),
        what=traceback.format_exception_only(type(error), error)[-1].strip().splitlines()[0],
        trace="".join(lines).rstrip(),
        is_echo=isinstance(error, HorovodInternalError) and not error.ranks_disagree,
        lost=error.rank if is_lost and error.rank >= 0 else None,
        cause=error.cause if is_lost else "",
    )


def _pickled(error, pickler):
    try:
        data = pickler.dumps(error)
        pickler.loads(data)  # some exceptions cannot be made again
        return data
    except Exception:
        return None


def culprit(outcomes, order=()):
    """The rank that a failure is to be blamed on, or None if all have results.

    A process that died comes before exceptions; those before what says that another rank failed.

    Parameters
    ----------
    outcomes : list of Outcome
        By rank.
    order : sequence of int
        Ranks as they ended; of several that qualify the first is taken.
    """
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome.kind != "result"]
    if not failed:
        return None
    order = list(order)
    failed.sort(key=lambda rank: (order.index(rank) if rank in order else len(order), rank))
    for rank in failed:
        if outcomes[rank].kind == "dead":
            return rank
    for rank in failed:
        if outcomes[rank].kind == "error" and not outcomes[rank].is_echo:
            return rank
    for rank in failed:
        if outcomes[rank].lost is not None and outcomes[rank].lost < len(outcomes):
            return outcomes[rank].lost
    return failed[0]


def results(outcomes, order=(), nodes=(), pids=(), pickler=pickle):
    """What the ranks returned. RankFailed names the one to blame, its node and pid, and the cause.

    ``nodes``, ``pids``: by rank, where they are known.
    """
    rank = culprit(outcomes, order)
    if rank is None:
        return [outcome.value for outcome in outcomes]
    raise rank_failed(outcomes, rank, nodes, pids) from _loaded(outcomes[rank].error, pickler)


def rank_failed(outcomes, rank, nodes=(), pids=()):
    """The error that blames this rank."""
    outcome = outcomes[rank]
    told = [o.cause for o in outcomes if o.lost == rank and o.cause]
    cause = told[0] if told and outcome.kind != "error" else outcome.what
    node, pid = (nodes[rank] if nodes else ""), (pids[rank] if pids else 0)
    where = ", ".join(filter(None, [node and f"node {node}", pid and f"pid {pid}"]))
    message = f"rank {rank} of {len(outcomes)}{f' ({where})' if where else ''} failed: {cause}"
    more = outcome.what if outcome.kind == "dead" and outcome.what != cause else outcome.trace
    return RankFailed("\n\n".join(filter(None, [message, more])), rank, None, node, pid, cause)


def _loaded(data, pickler):
    if data is None:
        return None
    try:
        return pickler.loads(data)
    except Exception:  # its class is not to be found here
        return None
