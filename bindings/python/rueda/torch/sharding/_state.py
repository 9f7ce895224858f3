"""The state of an optimizer, whole as `torch.optim` writes it, or this rank's shares of it."""

import copy

import torch

from rueda.torch.sharding._batch import room, view_of
from rueda.torch.sharding._layout import overlap
from rueda.torch.sharding._sources import Plain


def move_to_shard(state, batch, elements):
    """What a plain optimizer has for a batch's parameters becomes the shard's."""
    parts = {number: state.pop(slot.parameter, None) for number, slot in enumerate(batch.slots)}
    if any(parts.values()):
        source = Plain({"state": parts, "param_groups": []})
        state[batch.shard] = share_of(batch, source, range(len(batch.slots)), elements, typed=False)


def share_of(batch, source, numbers, elements, typed=True):
    """This rank's share of a batch's state; empty if there is none.

    Parameters
    ----------
    source : Source
    numbers : sequence of int
        Of each slot's parameter, its number there.
    elements : collection of str
        The keys of what the optimizer keeps for each element.
    typed : bool
        As `torch.optim` loads it: of the parameter's type, but for the count of steps.
    """
    forms = [source.forms(number) for number in numbers]
    scalars = [source.scalars(number) for number in numbers]
    each = {key: form[0] for of_slot in forms for key, form in of_slot.items()}
    single = {key: None for of_slot in scalars for key in of_slot if key not in each}
    if single and all(not slot.shape for slot in batch.slots):  # parameters of one element: their values look alike
        for key in elements:
            if key in single:
                single.pop(key)
                each[key] = next(of_slot[key].dtype for of_slot in scalars if key in of_slot)
    result = {key: _common(key, batch.slots, [of_slot.get(key) for of_slot in scalars]) for key in single}
    for key, dtype in each.items():
        if typed and dtype.is_floating_point:
            dtype = batch.dtype
        own = result[key] = torch.zeros(batch.end - batch.begin, dtype=dtype)
        for slot, number, of_slot, alone in zip(batch.slots, numbers, forms, scalars):
            part = overlap(slot.offset, slot.shape.numel(), batch.begin, batch.end)
            if key in of_slot:
                _require_form(key, slot, of_slot[key])
            if part is None or not (key in of_slot or key in alone):
                continue
            begin = slot.offset + part[0] - batch.begin
            own[begin : begin + part[1] - part[0]] = (
                _elements(source, number, key, of_slot[key], slot, *part) if key in of_slot else alone[key]
            )
    return result


def _elements(source, number, key, form, slot, first, last):
    """Those elements in the order in which the parameter's lie."""
    if same_order(slot.shape, form[2], slot.stride):
        return source.read(number, key, first, last)
    return laid_out(source.whole(number, key), slot.stride)[first:last]


def laid_out(value, stride):
    """Its elements, flat, as they lie where the stride is this one."""
    flat = torch.empty(value.numel(), dtype=value.dtype)
    flat.as_strided(value.shape, stride).copy_(value)
    return flat


def same_order(shape, one, other):
    return all(extent == 1 or a == b for extent, a, b in zip(shape, one, other))


def _require_form(key, slot, form):
    if tuple(form[1]) != tuple(slot.shape):
        raise ValueError(
            f"loaded state {key!r} of {slot.name} has the shape {tuple(form[1])}, the parameter {tuple(slot.shape)}"
        )


def _common(key, slots, values):
    """What parameters that lie together have together."""
    known = [(slot, value) for slot, value in zip(slots, values) if value is not None]
    first = known[0][1] if known else None
    for slot, value in zip(slots, values):
        if not _same(value, first):
            raise ValueError(
                f"the optimizer's state {key!r} is {first} for {known[0][0].name} and {value} for {slot.name}; parameters that "
                "are sharded together need the same. Give them param_groups of their own."
            )
    return copy.deepcopy(first)


def _same(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and one == other


def numbered(originals):
    """{parameter: number}, as ``state_dict`` counts them."""
    return {p: n for n, p in enumerate(p for parameters in originals for p in parameters)}


def is_per_element(value, batch):
    return getattr(value, "shape", None) == batch.shard.shape


def opened(value):
    """A value of the state as an ordinary tensor."""
    if not isinstance(value, torch.Tensor) and hasattr(value, "open"):  # `_keeping.Kept`
        value = value.open()
    if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor and hasattr(value, "dequantize"):
        return value.dequantize()
    return value


def gathered(groups, originals, batches, state, wire):
    """A plain optimizer's ``state_dict``, on every rank."""
    numbers = numbered(originals)
    packed = []
    for group, parameters in zip(groups, originals):
        options = {key: value for key, value in group.items() if key != "params"}
        packed.append({**copy.deepcopy(options), "params": [numbers[p] for p in parameters]})
    whole = {numbers[p]: copy.deepcopy(state[p]) for p in numbers if state.get(p)}  # of frozen ones
    for batch in batches:
        for key, value in state.get(batch.shard, {}).items():
            if is_per_element(value, batch):
                value = opened(value)
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


def shares(originals, batches, source, names, elements, keep):
    """What a rank takes of a `Source`: {shard or parameter that is not sharded: its state}.

    ``keep``: of a batch and its state, makes what is kept until the next step.
    """
    numbers = source.match(originals, names)
    sharded = {slot.parameter for batch in batches for slot in batch.slots}
    loaded = {}
    for p, number in numbers.items():
        if p not in sharded:
            parts = {key: source.whole(number, key) for key in source.forms(number)}
            loaded[p] = {**copy.deepcopy(source.scalars(number)), **parts}
    for batch in batches:
        own = [numbers[slot.parameter] for slot in batch.slots]
        loaded[batch.shard] = keep(batch, share_of(batch, source, own, elements))
    return {p: parts for p, parts in loaded.items() if parts}


def put(groups, state, source, loaded):
    """Makes it the optimizer's. The groups and ``state`` stay the objects that they are."""
    state.clear()
    state.update(loaded)
    for group, (options, _) in zip(groups, source.groups):
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        options = {key: _in_the_form_of(group.get(key), value) for key, value in copy.deepcopy(options).items()}
        group.clear()
        group.update(options)
        group.update(kept)


def _in_the_form_of(own, given):
    """A number as a tensor where the optimizer has one, as torchao's have their learning rate, and the other way round."""
    if isinstance(own, torch.Tensor) and isinstance(given, (int, float)):
        return torch.full_like(own, given)
    if isinstance(own, (int, float)) and isinstance(given, torch.Tensor):
        return given.item()
    return given
