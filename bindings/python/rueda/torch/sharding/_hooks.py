"""What a sharded module has on it: hooks of its forward, of its state dict, and an eye on its parameters."""

import functools
import inspect

import torch

from rueda.torch._outside import outside_graphs

_ALWAYS = (
    {"always_call": True}
    if "always_call" in inspect.signature(torch.nn.Module.register_forward_hook).parameters
    else {}
)


class Site:
    """A module whose forward needs units, or in whose forward parts of others may be used."""

    __slots__ = ("is_root", "module", "units")

    def __init__(self, module, units, is_root):
        self.module, self.units, self.is_root = module, units, is_root


def on_forward(site, passes):
    """Hooks; returns what removes them."""

    def before(module, arguments):
        passes.enter(site)

    def after(module, arguments, output):
        return passes.leave(site, output)

    first = site.module.register_forward_pre_hook(outside_graphs(before))
    site.module._forward_pre_hooks.move_to_end(first.id, last=False)  # before those that use parameters
    last = site.module.register_forward_hook(outside_graphs(after), **_ALWAYS)
    return [first.remove, last.remove]


def on_state_dict(module, slots, passes):
    """``state_dict()`` has whole values, and ``load_state_dict()`` takes them. ``slots``: by name."""
    loading = []

    def give(module, state, prefix, _):
        for name, slot in slots.items():
            if prefix + name in state and not slot.piece.unit.is_here:
                state[prefix + name] = passes.value_of(slot)

    def make_room(state, prefix, *_):
        for name, slot in slots.items():
            given = state.get(prefix + name)
            if isinstance(given, torch.Tensor) and given.shape == slot.shape and not slot.piece.unit.is_here:
                slot.show(torch.empty_like(slot.form, device="cpu"))
                loading.append(slot)

    def keep(module, _):
        for slot in loading:
            slot.piece.unit.accept(slot, slot.parameter)
            slot.piece.unit.put_away(slot)
        loading.clear()

    hooks = [
        module._register_state_dict_hook(give),
        module._register_load_state_dict_pre_hook(make_room),
        module.register_load_state_dict_post_hook(keep),
    ]
    return [hook.remove for hook in hooks]


class Watched(dict):
    """A module's parameters by name. One that another module uses than the one that has it is gathered then.

    (A model that multiplies by the transposed ``self.embedding.weight``.)
    """

    def __init__(self, parameters, slots, passes):
        super().__init__(parameters)
        self._slots, self._passes = slots, passes

    def __getitem__(self, name):
        p = super().__getitem__(name)
        slot = self._slots.get(name)
        if slot is not None and p is slot.parameter and not slot.piece.unit.is_here:
            self._passes.reach(slot.piece.unit)
        return p

    def __deepcopy__(self, memo):
        raise TypeError(REFUSAL)

    def __reduce_ex__(self, protocol):
        raise TypeError(REFUSAL)


REFUSAL = (
    "a model whose parameters are sharded cannot be copied or pickled: take its state_dict(), on all ranks, and load that into "
    "another model"
)


def watch(module, slots, passes):
    """Returns what ends it."""
    kind = type(module._parameters)
    module.__dict__["_parameters"] = Watched(module._parameters, slots, passes)
    return [functools.partial(_unwatch, module, kind)]


def _unwatch(module, kind):
    module.__dict__["_parameters"] = kind(module._parameters.items())
