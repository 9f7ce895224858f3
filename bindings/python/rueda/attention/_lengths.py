"""Which plan a call follows on this rank: what its tensors leave open is asked of the ranks."""

import os

import numpy as np

from rueda._array_collectives import allreduce, allreduce_async
from rueda._runtime import runtime
from rueda.attention import _groups
from rueda.attention._plans import Spec, plan_of
from rueda.common.basics import Sum
from rueda.common.exceptions import HorovodInternalError


def length_of(tokens, process_set):
    """Tokens of all ranks together."""
    if process_set.size() == 1:
        return tokens
    mine = np.array([tokens], np.int64)
    return int(allreduce(mine, op=Sum, process_set=process_set)[0])


def _lengths_of(tokens, keys, process_set):
    """Queries and keys of all ranks together."""
    if process_set.size() == 1:
        return tokens, keys
    mine = np.array([tokens, keys, 0, 0], np.int64)
    tokens, keys, refused, rank = map(int, allreduce(mine, op=Sum, process_set=process_set))
    if refused:
        who = f"the call of rank {rank} was" if refused == 1 else f"the calls of {refused} ranks were"
        raise HorovodInternalError(f"attention: {who} refused there; do all ranks call it with the same arguments?")
    return tokens, keys


def refuse_lengths(process_set):
    """This rank's answer where the others ask for lengths: its call is wrong. Waits for nobody."""
    allreduce_async(np.array([0, 0, 1, runtime.place.rank], np.int64), op=Sum, process_set=process_set)


def threads_of(asked, process_set):
    """0 lets the library choose, which for a local operation does not know the job."""
    if asked or process_set is not _groups.local or not runtime.is_initialized():
        return asked
    return max(1, (os.cpu_count() or 1) // runtime.place.local_size)


def plan_for(q_shape, k_shape, dtype, length, process_set, options):
    """The plan of a call on this rank, whose tokens must be those of the layout."""
    batch, tokens, heads, head_dim = q_shape
    keys = options.get("key_length")
    if length is None:
        length, asked = _lengths_of(tokens, k_shape[1], process_set)
        keys = keys or asked
    options = {**options, "key_length": 0 if keys in (None, length) else keys}
    plan = plan_of(
        Spec(batch, length, heads, k_shape[2], head_dim, dtype, **options), process_set
    )
    if plan.tokens != tokens:
        raise ValueError(
            f"this rank has {tokens} tokens, the {plan.spec.layout} layout of {length} tokens gives "
            f"it {plan.tokens}; use shard_sequence with the same layout"
        )
    if plan.keys != k_shape[1]:
        keys = plan.spec.key_length or length
        hint = "" if plan.spec.key_length else ", and give key_length where keys are not as many as queries"
        raise ValueError(
            f"this rank has {k_shape[1]} keys, the {plan.spec.layout} layout of {keys} keys gives it "
            f"{plan.keys}; use shard_sequence with the same layout{hint}"
        )
    return plan
