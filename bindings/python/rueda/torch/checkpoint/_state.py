"""What the names of a state stand for: as tensors and plain values, and back into what is there."""

import collections.abc
import contextlib
import copy
import functools

import torch

from rueda.torch.checkpoint import _tree
from rueda.torch.sharding import Sharded
from rueda.torch.sharding._whole import slot_of


class Flat:
    """A state as a checkpoint has it.

    Attributes
    ----------
    entries : dict
        Of each name, its kind and its value, in which tensors are named.
    tensors : dict
        By name.
    firsts : set
        Names of those that ranks may have of their own (buffers, what objects have): the first rank's are saved.
    """

    def __init__(self, state):
        _require_state(state)
        self.entries, self.tensors, self.firsts = {}, {}, set()
        names = parameter_names(state)
        for name, value in state.items():
            before = set(self.tensors)
            kind = kind_of(value)
            entry = self.entries[name] = {"kind": kind}
            if kind == "optimizer":
                entry["parameters"] = _parameter_forms(value, names)
                value = _by_name(value, names)
            elif kind in ("module", "object"):
                buffers = {f"{name}.{each}" for each, _ in value.named_buffers()} if kind == "module" else None
                value = value.state_dict()
            entry["value"] = _tree.encoded(value, name, self.tensors)
            if kind in ("object", "value"):
                self.firsts |= set(self.tensors) - before
            elif kind == "module":
                self.firsts |= buffers & set(self.tensors)


def _require_state(state):
    if not isinstance(state, collections.abc.Mapping):
        raise TypeError(f"the state is a mapping of names to what is saved, not {type(state).__name__}")
    wrong = [name for name in state if not isinstance(name, str) or not name]
    if wrong or not state:
        raise ValueError(f"the state has the name {wrong[0]!r}: names are strings" if wrong else "the state is empty")


def kind_of(value):
    if isinstance(value, torch.nn.Module):
        return "module"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "object" if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else "value"


def parameter_names(state):
    """Of the modules' parameters; the first name of one that has several."""
    names = {}
    for name, module in state.items():
        if isinstance(module, torch.nn.Module):
            for each, p in module.named_parameters():
                names.setdefault(p, f"{name}.{each}")
    return names


def _named_groups(optimizer, names):
    """[[(number in its state_dict, name, parameter)]] of its groups; by number what is in no module of the state."""
    groups = [group["params"] for group in optimizer.param_groups]
    if isinstance(optimizer, Sharded):
        groups = optimizer._originals  # its groups have shares of them
    result, number = [], 0
    for group in groups:
        result.append([(number + n, names.get(p, str(number + n)), p) for n, p in enumerate(group)])
        number += len(group)
    return result


def _parameter_forms(optimizer, names):
    return {each: [str(p.dtype), list(_shape(p))] for group in _named_groups(optimizer, names) for _, each, p in group}


def _shape(p):
    slot, _ = slot_of(p)
    return p.shape if slot is None else slot.shape


def _by_name(optimizer, names):
    """An optimizer's ``state_dict`` with names where that has numbers."""
    groups, state = _named_groups(optimizer, names), optimizer.state_dict()
    by_number = {number: name for group in groups for number, name, _ in group}
    return {
        "state": {by_number.get(number, number): parts for number, parts in state.pop("state").items()},
        "groups": [
            {"options": _options(theirs), "parameters": [name for _, name, _ in group]}
            for theirs, group in zip(state.pop("param_groups"), groups)
        ],
        "more": state,
    }


def _options(group):
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def mismatches(entries, forms, state):
    """Whatever keeps what was saved from being loaded into ``state``: sentences, none if nothing does.

    ``forms``: of the tensors that were saved, (dtype, shape).
    """
    _require_state(state)
    wrong, names = [], parameter_names(state)
    for name, value in state.items():
        kind = kind_of(value)
        if name not in entries:
            wrong.append(f"{name!r} is not in the checkpoint, which has {', '.join(map(repr, entries))}")
        elif entries[name]["kind"] != kind:
            wrong.append(f"{name!r} is a {kind} here, and was a {entries[name]['kind']}")
        elif kind == "module":
            wrong += _of_module(name, value, entries[name], forms)
        elif kind == "optimizer":
            wrong += _of_optimizer(name, value, names, entries[name])
        elif kind == "tensor":
            wrong += _of_form(name, value, forms[name])
        elif kind == "value" and not isinstance(state, collections.abc.MutableMapping):
            wrong.append(f"{name!r} is a plain value, which the mapping cannot be given anew")
    return wrong


def _of_module(name, module, entry, forms):
    here, there = module.state_dict(), dict(entry["value"]["dict"])
    wrong = [f"{name}.{key} is not in the checkpoint" for key in here if key not in there]
    wrong += [f"{name}.{key} is in the checkpoint, and not here" for key in there if key not in here]
    for key, value in here.items():
        if isinstance(value, torch.Tensor) and key in there:
            form = forms.get(f"{name}.{key}")
            wrong += [f"{name}.{key} was no tensor"] if form is None else _of_form(f"{name}.{key}", value, form)
    return wrong


def _of_form(name, value, form):
    dtype, shape = form
    if (value.dtype, tuple(value.shape)) == (dtype, tuple(shape)):
        return []
    return [f"{name} is {value.dtype} {list(value.shape)} here, and was {dtype} {list(shape)}"]


def _of_optimizer(name, optimizer, names, entry):
    here, there = _parameter_forms(optimizer, names), entry["parameters"]
    groups = [[each for _, each, _ in group] for group in _named_groups(optimizer, names)]
    saved = [_tree.decoded(group, {})["parameters"] for group in _groups_of(entry)]
    if [len(group) for group in groups] != [len(group) for group in saved]:
        counts = [len(group) for group in groups], [len(group) for group in saved]
        return [f"{name} has parameter groups of {counts[0]} parameters here, and had {counts[1]}"]
    renamed = _renamed(groups, saved)
    if renamed is None:
        missing, extra = sorted(set(here) - set(there)), sorted(set(there) - set(here))
        if missing or extra:
            return [f"{name} has the parameters {missing} here, and had {extra}"]
        return [f"{name} has parameters in other groups than it had"]
    return [
        f"{name}: {each} is {' '.join(map(str, here[each]))} here, and was {' '.join(map(str, there[theirs]))}"
        for theirs, each in renamed.items()
        if here[each] != there[theirs]
    ]


def _groups_of(entry):
    """As they are encoded, without options, which may have tensors."""
    groups = dict(entry["value"]["dict"])["groups"]["list"]
    return [{"dict": [pair for pair in group["dict"] if pair[0] == "parameters"]} for group in groups]


def _renamed(groups, saved):
    """{name that was saved: name here}: by name, or by place if one side has no names. None: they differ."""
    if all(set(here) == set(there) for here, there in zip(groups, saved)):
        return {name: name for group in groups for name in group}
    for side in (groups, saved):
        if all(name.isdigit() for group in side for name in group):
            return {theirs: ours for here, there in zip(groups, saved) for ours, theirs in zip(here, there)}
    return None


def put(entries, tensors, state):
    """Loads what matches. If an owner refuses its part, all have what they had, and its error is raised."""
    names, undo = parameter_names(state), []
    order = {"object": 0, "optimizer": 1, "value": 2, "tensor": 3, "module": 4}  # who may refuse comes first
    try:
        for name, value in sorted(state.items(), key=lambda pair: order[kind_of(pair[1])]):
            kind = kind_of(value)
            loaded = _tree.decoded(entries[name]["value"], tensors)
            if kind == "optimizer":
                if not isinstance(value, Sharded):  # which looks at all of it first, and whose own is on all ranks
                    undo.append(functools.partial(value.load_state_dict, value.state_dict()))
                value.load_state_dict(_by_number(value, names, loaded))
            elif kind == "object":
                undo.append(functools.partial(value.load_state_dict, copy.deepcopy(value.state_dict())))
                value.load_state_dict(loaded)
            elif kind == "module":
                value.load_state_dict(loaded)
            elif kind == "tensor":
                with torch.no_grad():
                    value.copy_(loaded)
            else:
                state[name] = loaded
    except BaseException:
        for each in reversed(undo):
            with contextlib.suppress(Exception):  # of who has refused
                each()
        raise


def _by_number(optimizer, names, loaded):
    """The ``state_dict`` that an optimizer takes."""
    groups = _named_groups(optimizer, names)
    renamed = _renamed([[name for _, name, _ in g] for g in groups], [g["parameters"] for g in loaded["groups"]])
    number_of = {name: number for group in groups for number, name, _ in group}
    state = {number_of[renamed[key]] if key in renamed else key: parts for key, parts in loaded["state"].items()}
    param_groups = []
    for mine, group, theirs in zip(optimizer.param_groups, groups, loaded["groups"]):
        own = {"params": [number for number, _, _ in group]}
        if "param_names" in mine:
            own["param_names"] = mine["param_names"]
        param_groups.append({**theirs["options"], **own})
    return {"state": state, "param_groups": param_groups, **loaded["more"]}
