"""A wrapped optimizer's step, one batch after another: where its state is kept elsewhere between steps, or values in a journal."""

import collections
import contextlib

import torch

from rueda.torch.sharding import _keeping


def step_by_batch(optimizer, plain_step, keeping, journal, groups, batches):
    """``plain_step``, of the wrapped class, once for each batch. ``keeping``, ``journal``: or None.

    What it counts beside the state of parameters, in its options and in itself, it counts once.
    """
    state, work = optimizer.state, [(group, shard) for group in groups for shard in group["params"]]
    of = {batch.shard: batch for batch in batches}
    shards, counted = [group["params"] for group in groups], _numbers(vars(optimizer))
    options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    before = {id(group): option for group, option in zip(groups, options)}
    if keeping is not None:
        keeping.roundings += 1
    try:
        for n, (group, shard) in enumerate(work):
            if keeping is not None:
                extent = _open(state, keeping, shard, work[n + 1 : n + 2])
            if n:
                _put_back(vars(optimizer), counted, _numbers(vars(optimizer)))
                _put_back(group, before[id(group)], [key for key in group if key != "params"])
            group["params"] = [shard]
            optimizer.__dict__["param_groups"] = [group]
            if journal is not None:
                journal.before_next()
            plain_step(optimizer)
            if journal is not None:
                journal.after_next()
            if keeping is not None:
                state[shard] = keeping.keep(of[shard], state.get(shard, {}), True, extent)
                keeping.rest()
    finally:
        optimizer.__dict__["param_groups"] = groups
        for group, parameters in zip(groups, shards):
            group["params"] = parameters


def _open(state, keeping, shard, following):
    """A batch's state as the optimizer has it; what follows is read ahead. Returns where in a file it was."""
    parts = state.get(shard, {})
    extent, opened = _keeping.extent_of(parts), keeping.open(parts)
    for _, each in following:
        ahead = _keeping.extent_of(state.get(each, {}))
        if ahead is not None:
            ahead.read_ahead()
    if opened:
        state[shard] = opened
    return extent


def _put_back(mapping, before, keys):
    for key in keys:
        if key not in before:
            del mapping[key]
    mapping.update(before)


def _numbers(attributes):
    return {key: value for key, value in attributes.items() if type(value) in (int, float)}


def unhooked(kind):
    """The step of an optimizer's class, without PyTorch's hooks."""
    step = kind.step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step


@contextlib.contextmanager
def _hooks_once(optimizer):
    """Inside, the hooks of a step that others have run around it are not there."""
    names = [name for name in vars(optimizer) if name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")]
    before = {name: getattr(optimizer, name) for name in names}
    try:
        for name in names:
            setattr(optimizer, name, collections.OrderedDict())
        yield
    finally:
        vars(optimizer).update(before)


def hooked(optimizer, work):
    """Runs it with PyTorch's hooks of a step before and behind it."""

    def within(optimizer):
        with _hooks_once(optimizer), torch.no_grad():
            work()

    wrapper = getattr(torch.optim.Optimizer, "profile_hook_step", None)  # PyTorch 2
    (wrapper(within) if wrapper is not None else within)(optimizer)
