"""Waits until a function has ended on all workers, or for too long after it has failed on one."""

import time

import ray
from ray.exceptions import RayActorError, RayTaskError
from rueda._outcomes import Outcome, failure

GRACE_SECONDS = 5  # for the others, after the first failure


def collect(references):
    """What became of each, and in which order they ended: ([Outcome], [rank]).

    Those that are not there ``GRACE_SECONDS`` after the first failure are "missing".
    """
    ranks = {reference: rank for rank, reference in enumerate(references)}
    outcomes = [Outcome("missing", what="it had not ended when another rank failed")] * len(ranks)
    order, pending, deadline = [], list(references), None
    while pending:
        timeout = None if deadline is None else max(0, deadline - time.monotonic())
        ended, pending = ray.wait(pending, num_returns=1, timeout=timeout)
        if not ended:
            break
        for reference in ended:
            rank = ranks[reference]
            outcomes[rank] = _outcome(reference)
            order.append(rank)
            if outcomes[rank].kind != "result" and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
    return outcomes, order


def _outcome(reference):
    try:
        return ray.get(reference)
    except RayActorError as error:
        return Outcome("dead", what=how_it_died(error))
    except RayTaskError as error:
        return failure(error.cause if isinstance(error.cause, Exception) else error)
    except Exception as error:  # the result cannot be had: lost, too large, not to be unpickled
        return failure(error)


def how_it_died(error):
    """Ray's words, without what is told otherwise."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_TOLD)]
    return " ".join(said) or "its actor died"


_TOLD = (
    "The actor died unexpectedly before finishing this task.",
    "class_name:",
    "actor_id:",
    "pid:",
    "name:",
    "namespace:",
    "ip:",
)
