"""The state of an optimizer, whole as `torch.optim` writes it, or this rank's shares of it."""

import copy

import torch

from rueda.torch.sharding._batch import room, view_of
from rueda.torch.sharding._layout import overlap

_OF_ALL = "step", "mu_product", "mu", "eta"  # numbers that are of a parameter as a whole, also of one without dimensions


def move_to_shard(state, batch):
    """What a plain optimizer has for a batch's parameters becomes the shard's."""
    parts = [state.pop(slot.parameter, None) for slot in batch.slots]
    if any(parts):
        state[batch.shard] = _shard_of(batch, parts)


def _shard_of(batch, parts):
    """This rank's share of a batch's state; ``parts``: each parameter's own, or None."""
    keys = {}
    for part in parts:
        keys.update(dict.fromkeys(part or ()))
    return {key: _share_of(batch, key, [(part or {}).get(key) for part in parts]) for key in keys}


def _share_of(batch, key, values):
    slots = batch.slots
    if key not in _OF_ALL and any(_is_like(value, slot) for slot, value in zip(slots, values)):
        dtype = next(value.dtype for slot, value in zip(slots, values) if _is_like(value, slot))
        own = torch.zeros(batch.end - batch.begin, dtype=dtype)
        for slot, value in zip(slots, values):
            part = overlap(slot.offset, slot.parameter.numel(), batch.begin, batch.end)
            if part is None or value is None:
                continue
            first, last = part
            flat = torch.empty(slot.parameter.numel(), dtype=dtype)
            view_of(flat, 0, slot.form).copy_(value)
            begin = slot.offset + first - batch.begin
            own[begin : begin + last - first] = flat[first:last]
        return own
    known = [(slot, value) for slot, value in zip(slots, values) if value is not None]
    first = known[0][1] if known else None
    for slot, value in zip(slots, values):
        if not _same(value, first):
            raise ValueError(
                f"the optimizer's state {key!r} is {first} for {known[0][0].name} and {value} for {slot.name}; parameters that "
                "are sharded together need the same. Give them param_groups of their own."
            )
    return copy.deepcopy(first)


def _is_like(value, slot):
    return isinstance(value, torch.Tensor) and value.shape == slot.shape


def _same(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and one == other


def gathered(groups, originals, batches, state, wire):
    """A plain optimizer's ``state_dict``, on every rank."""
    numbers, packed = {}, []
    for group, parameters in zip(groups, originals):
        for p in parameters:
            numbers[p] = len(numbers)
        options = {key: value for key, value in group.items() if key != "params"}
        packed.append({**copy.deepcopy(options), "params": [numbers[p] for p in parameters]})
    whole = {numbers[p]: copy.deepcopy(state[p]) for p in numbers if state.get(p)}  # of frozen ones
    for batch in batches:
        for key, value in state.get(batch.shard, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == batch.shard.shape:
                flat = room(batch.total, value.dtype)
                wire.gather(flat, value.contiguous()).wait()
                for slot in batch.slots:
                    part = view_of(flat, slot.offset, slot.form)
                    whole.setdefault(numbers[slot.parameter], {})[key] = part.clone(
                        memory_format=torch.preserve_format
                    )
            else:
                for slot in batch.slots:
                    whole.setdefault(numbers[slot.parameter], {})[key] = copy.deepcopy(value)
    return {"state": {number: whole[number] for number in sorted(whole)}, "param_groups": packed}


def load(groups, originals, batches, state, given):
    """This rank's shares of a plain ``state_dict``. The groups and ``state`` stay the objects that they are."""
    theirs = given["param_groups"]
    if len(theirs) != len(groups):
        raise ValueError(
            f"loaded state dict has {len(theirs)} parameter groups, the optimizer {len(groups)}"
        )
    numbers = {}
    for group, parameters in zip(theirs, originals):
        if len(group["params"]) != len(parameters):
            raise ValueError(
                f"loaded state dict has a parameter group of {len(group['params'])} parameters where the optimizer's "
                f"has {len(parameters)}"
            )
        numbers.update(zip(parameters, group["params"]))
    sharded = {slot.parameter for batch in batches for slot in batch.slots}
    shards = {p: copy.deepcopy(given["state"][n]) for p, n in numbers.items() if n in given["state"] and p not in sharded}
    for batch in batches:
        parts = [given["state"].get(numbers[slot.parameter]) for slot in batch.slots]
        for slot, part in zip(batch.slots, parts):
            _require_form(slot, part)
        if any(parts):
            parts = [part and {key: _typed(key, value, batch.dtype) for key, value in part.items()} for part in parts]
            shards[batch.shard] = _shard_of(batch, parts)
    state.clear()
    state.update(shards)
    for group, other in zip(groups, theirs):
        parameters = group["params"]
        group.clear()
        group.update(copy.deepcopy({key: value for key, value in other.items() if key != "params"}))
        group["params"] = parameters


def _require_form(slot, part):
    for key, value in (part or {}).items():
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != slot.shape:
            raise ValueError(
                f"loaded state {key!r} of {slot.name} has the shape {tuple(value.shape)}, the parameter {tuple(slot.shape)}"
            )


def _typed(key, value, dtype):
    """As `torch.optim` does it: of the parameter's type, but for the count of steps."""
    if isinstance(value, torch.Tensor) and key != "step" and value.is_floating_point():
        return value.to(dtype=dtype, device="cpu")
    return value
