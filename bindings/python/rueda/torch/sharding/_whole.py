"""Whole parameters of a sharded model: to look at and change them, and to load them one by one."""

import contextlib

import torch

from rueda.torch import _owners


@contextlib.contextmanager
def gathered(what):
    """Within, parameters are whole on every rank; all ranks must enter.

    What all ranks change them to is kept. Tensors that are taken out stay as they are afterwards.

    Parameters
    ----------
    what : torch.nn.Module or optimizer
        A module, of a model that was given to ``DistributedOptimizer(..., shard="parameters")`` or a part of it, or that optimizer.
        Only units that it has a parameter of are gathered. Without effect for others.
    """
    with contextlib.ExitStack() as held:  # all are let go, also when that is an error for some
        for unit, wire in units_of(what):
            unit.hold(wire)
            held.callback(unit.let_go)
        yield


def units_of(what):
    """[(unit, wire)]"""
    passes = getattr(what, "_gathering", None)
    if passes is not None and not isinstance(what, torch.nn.Module):
        return [(unit, passes.wire) for unit in passes.units]
    if not isinstance(what, torch.nn.Module):
        if isinstance(what, torch.optim.Optimizer):
            return []
        raise TypeError(f"hvd.gathered() is of a module or an optimizer, not of {type(what).__name__}")
    found = {}
    for p in what.parameters():
        slot, passes = slot_of(p)
        if slot is not None:
            found[slot.piece.unit] = passes.wire
    return list(found.items())


def slot_of(p):
    """(slot, passes) of a parameter that is sharded, else (None, None)."""
    owner = _owners.owner(p)
    passes = getattr(owner, "_gathering", None)
    slot = owner._slots.get(p) if passes is not None else None
    return (slot, passes) if slot is not None else (None, None)


def is_away(p):
    """Whether a parameter is sharded and not gathered."""
    slot, _ = slot_of(p)
    return slot is not None and not slot.piece.unit.is_here


def load_parameters(module, named_tensors, strict=True):
    """Loads parameters and buffers one by one: of a model that is whole nowhere, each rank keeps its share.

    Parameters
    ----------
    module : torch.nn.Module
    named_tensors : mapping or iterable of (str, torch.Tensor)
        Such as ``state_dict()``, or ``(name, file.get_tensor(name)) for name in file.keys()`` of a safetensors file. Every rank
        brings all of them; only one needs to be in memory at a time.
    strict : bool
        ValueError names what is missing, or unknown; else that is passed over.
    """
    places = dict(module.named_buffers())
    for name, p in _named_parameters(module):
        places[name] = p
    wanted = _wanted(module)
    unknown = []
    with torch.no_grad():
        for name, tensor in named_tensors.items() if hasattr(named_tensors, "items") else named_tensors:
            place = places.get(name)
            if place is None:
                unknown.append(name)
                continue
            if place.shape != tensor.shape:
                raise ValueError(f"{name!r} has the shape {tuple(tensor.shape)}, the model's {tuple(place.shape)}")
            slot, _ = slot_of(place)
            if slot is None or slot.piece.unit.is_here:
                place.copy_(tensor)
            else:
                slot.piece.unit.accept(slot, tensor)
            wanted.discard(name)
    if strict and (unknown or wanted):
        raise ValueError(f"names that the model does not have: {unknown}; that were not given: {sorted(wanted)}")


def _named_parameters(module):
    """With every name of one that has several."""
    for prefix, each in module.named_modules():
        for name, p in each._parameters.items():
            if p is not None:
                yield f"{prefix}.{name}" if prefix else name, p


def _wanted(module):
    """Names of what a state_dict has."""
    names = {name for name, _ in _named_parameters(module)}
    for prefix, each in module.named_modules():
        for name, buffer in each._buffers.items():
            if buffer is not None and name not in each._non_persistent_buffers_set:
                names.add(f"{prefix}.{name}" if prefix else name)
    return names
