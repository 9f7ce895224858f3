"""The third stage of ZeRO: a sharded optimizer whose parameters are gathered unit by unit, and given up again.

    wrap:      units of the model -> flat pieces -> each rank keeps its share, and parameters are away
    forward, backward:  `_passes`
    step():    wait for this rank's shares of the sums -> the wrapped optimizer updates its shares of the values
"""

import collections
import weakref

import torch

from rueda.torch import _owners
from rueda.torch._distributed import _some
from rueda.torch._gradient import on_gradient_complete
from rueda.torch._outside import outside_graphs
from rueda.torch.sharding import _layout, _state
from rueda.torch.sharding._batch import view_of
from rueda.torch.sharding._flat import Piece
from rueda.torch.sharding._hooks import Site, on_forward, on_state_dict, watch
from rueda.torch.sharding._materialize import make_real
from rueda.torch.sharding._optimizer import Sharded
from rueda.torch.sharding._passes import Passes
from rueda.torch.sharding._unit import Unit
from rueda.torch.sharding._units import plan_units


Model = collections.namedtuple("Model", "module units init")
Model.__doc__ = """As `rueda.torch.DistributedOptimizer` gets them."""


class ShardedParameters(Sharded):
    """Its batches are pieces of units."""

    _gathering = None  # its `Passes`, when it is made
    _pieces_made = 0

    def _shard_all(self, groups):
        try:
            self._shard_model(groups, *self._model)
        except BaseException:
            self._wire.close()
            raise

    def _shard_model(self, groups, module, units, init):
        plans = plan_units(module, units)
        self._require_modules(module, groups)
        outer = {m for plan in plans if plan.is_outer for m in plan.modules} | {module}
        made, fill = make_real(module, outer if len(plans) > 1 else set(), init)
        self._leave_earlier_owners(module)
        self._rename(made, groups)
        forms = {new: old for old, new in made.items()}
        self._originals = [list(group["params"]) for group in groups]
        for name, p in module.named_parameters():  # frozen ones may not be the optimizer's
            self._parameter_names.setdefault(p, name)
        group_of = {p: n for n, parameters in enumerate(self._originals) for p in parameters}
        self._frozen = [p for p in group_of if not p.requires_grad]
        built = [self._build(plan._replace(parameters=[made.get(p, p) for p in plan.parameters]), group_of, forms) for plan in plans]
        built = [unit for unit in built if unit is not None]
        self._slots = {slot.parameter: slot for unit in built for slot in unit.slots}
        self._fill_all(made, fill)
        for number, group in enumerate(groups):
            mine = [piece for unit in built for piece in unit.pieces if piece.is_trained and group_of[piece.slots[0].parameter] == number]
            group["params"] = [piece.shard for piece in mine]
            self._batches += mine
        state = self.__dict__["state"]
        for piece in self._batches:
            _state.move_to_shard(state, piece, self._elements)
            if piece.shard in state:
                state[piece.shard] = self._keep(piece, state[piece.shard])
        for unit in built:
            unit.hide(checks=False)
        self._gathering = Passes(built, self._wire)
        self._gathering.optimizer = self  # the model's hooks keep what its parameters need
        self._watch_over(module)

    def _late_arrivals(self):
        return None  # units are gathered when they are needed

    def _require_modules(self, module, groups):
        known = set(module.parameters())
        lost = [self._parameter_names[p] for group in groups for p in group["params"] if p not in known]
        if lost:
            raise ValueError(f"shard='parameters': of no module of module= are {_some(lost)}")

    def _leave_earlier_owners(self, module):
        """Parameters that another optimizer has sharded are whole again."""
        for p in module.parameters():
            before = _owners.own(p, self)
            if before is not None and before is not self and p in before._parameter_names:
                before._lose(p)

    def _rename(self, made, groups):
        """Parameters that had no memory are others now."""
        names = self._parameter_names
        for old, new in made.items():
            _owners.own(new, self)
            if old in names:
                names[new] = names.pop(old)
        for group in groups:
            group["params"][:] = [made.get(p, p) for p in group["params"]]

    def _build(self, plan, group_of, forms):
        """The plan's unit, without values: pieces of one type and group each."""
        parameters = [p for p in plan.parameters if p.dtype.is_floating_point and (p in group_of or not p.requires_grad)]
        together = {}
        for p in parameters:
            kind = (group_of[p] if p.requires_grad else None, p.dtype)
            together.setdefault(kind, []).append(p)
        pieces = []
        for (group, _), mine in together.items():
            places, count = [], 0
            for number, p in enumerate(mine):
                places.append(_layout.Place(number, count))
                count += p.numel()
            layout = _layout.Layout(places, count, _layout.share(count, self._wire.size))
            pieces.append(
                Piece(
                    layout,
                    mine,
                    [forms.get(p, p) for p in mine],
                    self._parameter_names,
                    self._wire.rank,
                    self._wire.size,
                    group is not None,
                    self._pieces_made,
                )
            )
            self._pieces_made += 1
        return Unit(plan, pieces) if pieces else None

    def _fill_all(self, made, fill):
        """The first rank's values, or first values as the first rank's random numbers say."""
        new = set(made.values())
        for p, slot in self._slots.items():
            if p not in new:
                values = torch.empty(p.numel(), dtype=p.dtype)
                whole = view_of(values, 0, slot.form)
                whole.copy_(p.detach())
                self._wire.broadcast(values)
                slot.piece.put(slot, whole)
            slot.hide()
        if new:
            own = torch.get_rng_state()
            first = self._wire.broadcast(own.clone())
            torch.set_rng_state(first)
            fill(self._slots)
            if not torch.equal(own, first):
                torch.set_rng_state(own)

    def _watch_over(self, module):
        passes = self._gathering
        sites = {module: []}
        for unit in passes.units:
            for each in unit.modules:
                sites.setdefault(each, []).append(unit)
        removers = []
        for each, units in sites.items():
            removers += on_forward(Site(each, units, each is module), passes)
        for each in module.modules():
            slots = {name: self._slots[p] for name, p in each._parameters.items() if p in self._slots}
            if slots:
                removers += on_state_dict(each, slots, passes)
                removers += watch(each, slots, passes)
        for slot in self._slots.values():
            if slot.piece.is_trained:
                removers.append(on_gradient_complete(slot.parameter, _completer(slot, passes)))
        self._removers = removers
        self._homes = [(each, name, p) for each in module.modules() for name, p in each._parameters.items() if p in self._slots]

    def _lose(self, p):
        """A later optimizer has been made for the parameter: this one gives all of them back, whole. On all ranks."""
        self._lost.append(self._parameter_names[p])
        removers, self._removers = self._removers, []
        for remove in removers:
            remove()
        if not removers:
            return
        self._gathering.recover()
        for unit in self._gathering.units:
            unit.drop()
            found = unit.whole(self._wire)
            for piece, values in zip(unit.pieces, found):
                for slot, view in zip(piece.slots, piece.views(values)):
                    slot.show(view.clone(memory_format=torch.preserve_format))
        self._slots = {}
        self._gathering.optimizer = None

    def tensors_kept(self):
        values, gradients = self._gathering.tensors_kept()
        return {"parameters": values, "gradients": gradients, "state": self._state_kept()}

    # ---- the step ----

    @outside_graphs
    def _reduce_all(self):
        self._check_places()
        self._gathering.rest()
        self._gathering.reduce_all(self._batches)
        for piece in self._batches:
            piece.shard.grad = piece.sum

    def _check_places(self):
        if self._lost:
            return super()._check_places()
        moved = [self._slots[p].name for module, name, p in self._homes if module._parameters.get(name) is not p]
        moved += [slot.name for slot in self._slots.values() if not slot.is_in_place()]
        if moved:
            raise RuntimeError(
                f"Parameters of a sharded model were replaced ({_some(moved)}): p.data was set, or the model resized, moved or "
                "converted. Change values in place within hvd.gathered(), or wrap the optimizer after the change."
            )
        other = [slot.name for p, slot in self._slots.items() if p.requires_grad != slot.piece.is_trained]
        if other:
            raise RuntimeError(f"requires_grad was changed after the optimizer was sharded ({_some(other)}). Wrap a new one.")

    @outside_graphs
    def _gather(self):
        """Not now: units are gathered when they are needed."""
        self._gathering.values_have_changed()

    def _forget(self, after_step=False):
        self._settled = self._synchronized = False
        self._gathering.forget(self._batches)

    def _abandon(self):
        self._settled = self._synchronized = False

    def add_param_group(self, group):
        if self._gathering is None:  # while the optimizer is being made
            return super().add_param_group(group)
        raise ValueError(
            'add_param_group is not for shard="parameters": give all groups to the optimizer before it is wrapped, or wrap anew'
        )


def _completer(slot, passes):
    """A hook of a parameter, which keeps nothing alive: the garbage collector does not look there."""
    slot, passes = weakref.ref(slot), weakref.ref(passes)

    def complete(p):
        if passes() is not None:
            passes().complete(slot(), p)

    return outside_graphs(complete)
