"""A unit: parameters that are gathered and given up together.

              load                 show
    away  -----------> loaded  -----------> here      p.data is the values; modules may use them
     ^                   |  ^                |
     |  place is needed  |  +----------------+  hide: p.data is of the right shape and is no number
     +-------------------+
         or values change

What autograd has saved of a parameter looks at the unit's place as well. It is right again when the unit is loaded
again; until then the parameter's version says that it was changed, so that using it is autograd's error.
"""

import torch

from rueda.torch._distributed import _some
from rueda.torch.memory import storage_of
from rueda.torch.sharding._flat import told_of
from rueda.torch.sharding._pools import Buffer, Second

_set_versions = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)


def set_versions(parameters, version):
    """Where PyTorch can do it (2.1)."""
    if _set_versions is None:
        return
    try:
        _set_versions(parameters, [version] * len(parameters))
    except TypeError:  # before 2.6 one by one
        for p in parameters:
            _set_versions(p, version)


class Unit:
    """Of one `Plan`.

    Attributes
    ----------
    uses : int
        Forwards of its modules that are running.
    live : int or None
        Backward goes through it: when the earliest forward began whose backward has.
    awaited : collections.Counter or None
        While it is live: by numbers of units, forwards of the same pass whose backward has not begun.
    owes : bool
        Backward has gone through it, and the others wait for this rank's gradients.
    held : int
        Contexts of `gathered` that it is in.
    """

    def __init__(self, plan, pieces):
        self.name, self.modules, self.pieces, self.is_outer = plan.name, plan.modules, pieces, plan.is_outer
        self.gradient_bytes = 0
        for piece in pieces:
            piece.unit = self
            if piece.is_trained:
                piece.gradients_at = self.gradient_bytes
                self.gradient_bytes += piece.nbytes
        self._gradients, self._open_pieces = None, 0
        self.slots = [slot for piece in pieces for slot in piece.slots]
        self.parameters = [slot.parameter for slot in self.slots]
        self.nbytes = sum(piece.nbytes for piece in pieces)
        self.place, self.is_alone = None, plan.is_outer
        self.is_here, self.is_loaded = False, False
        self.uses, self.live, self.awaited, self.held = 0, None, None, 0
        self.owes = False
        self.recomputed = None  # where it was when a checkpoint computed it again
        self._pending = ()
        self._version = 2 + max((p._version for p in self.parameters), default=0)
        self._told = 0  # to the parameters, when it was hidden
        self._values, self._views, self._whole = None, None, None

    @property
    def is_busy(self):
        """Whether its place must stay as it is."""
        return self.is_here and not self.held

    def has_memory_of(self, tensor):
        """Whether a tensor looks at the unit's place."""
        if self.place is None or tensor.layout is not torch.strided or not tensor.is_cpu:
            return False
        return storage_of(tensor).data_ptr() == self.place.address

    def forget_views(self):
        """It has another place."""
        self._values = self._views = None
        self.is_loaded = False

    def live_alone(self):
        """From now on others are gathered while it is here."""
        if not self.is_alone:
            self.is_alone = True
            self.drop()
            if self.place is not None and self.place.holder is self:
                self.place.holder = None
            self.place = None

    def be_at(self, place):
        """Autograd has saved parts of it there."""
        if place is self.place or getattr(place.holder, "unit", None) is self:
            return
        if place.holder is not None and place.holder.is_busy:
            if place is self.recomputed:  # nobody asks for the version of what a checkpoint keeps
                raise RuntimeError(
                    f"a checkpoint has computed {self.name!r} again where {place.holder.name!r} is gathered now: make one of them no "
                    "unit of its own (units=)"
                )
            self._version += 2  # it must not use them
            set_versions(self.parameters, self._version)
            return
        if place.holder is not None:
            place.holder.drop()
        place.memory[: self.nbytes].copy_(self.place.memory[: self.nbytes])
        place.holder = Second(self)

    # ---- away and loaded ----

    def load(self, wire, places):
        """Starts to gather, or finds the values where they were."""
        if self.is_loaded:
            return
        if wire.size == 1:
            if self._values is None:
                self._look_at([piece.shard.detach() for piece in self.pieces])
        else:
            place = places.of(self)
            if place.holder is not None:
                place.holder.drop()
            place.holder = self
            if self._values is None:
                self._look_at(self._parts(place))
            self._pending = [
                wire.gather(values, piece.shard.detach(), piece.inner) for values, piece in zip(self._values, self.pieces)
            ]
        self.is_loaded = True

    def _parts(self, place):
        at, parts = 0, []
        for piece in self.pieces:
            parts.append(place.part(at, piece.total, piece.dtype))
            at += piece.nbytes
        return parts

    def _look_at(self, values):
        self._values = values
        self._views = [view for piece, each in zip(self.pieces, values) for view in piece.views(each)]

    def wait(self):
        pending, self._pending = self._pending, ()
        try:
            for each in pending:
                with told_of(self.name):
                    each.wait()
        except BaseException:
            self.is_loaded = False
            raise

    def drop(self):
        """Its place is for another, or its values are old."""
        self.wait()
        self.is_loaded = False

    def has_changed(self):
        """The shares have."""
        self.drop()
        self._version += 2

    def value_of(self, slot):
        """A copy, of a unit that is loaded."""
        self.wait()
        return self._views[self.slots.index(slot)].clone(memory_format=torch.preserve_format)

    # ---- here ----

    def show(self):
        self._require_untouched()
        self.wait()
        for slot, view in zip(self.slots, self._views):
            slot.show(view)
        set_versions(self.parameters, self._version)
        self.is_here = True

    def hide(self, checks=True):
        if checks:
            self._require_untouched()
        for slot in self.slots:
            slot.hide()
        self._told = self._version + 1
        set_versions(self.parameters, self._told)
        self.is_here = False

    def hide_if_idle(self):
        if self.is_here and not self.uses and self.live is None and not self.held:
            self.hide()

    def _require_untouched(self):
        moved = [slot.name for slot in self.slots if not slot.is_in_place()]
        if moved:
            raise RuntimeError(
                f"Parameters of a sharded model were replaced ({_some(moved)}): p.data was set, or the model resized, moved or "
                "converted. Change values in place within hvd.gathered(), or wrap the optimizer after the change."
            )
        if not self.is_here and _set_versions is not None:
            written = [slot.name for slot in self.slots if slot.parameter._version != self._told]
            if written:
                raise RuntimeError(
                    f"Parameters of a sharded model were written to while they were not gathered ({_some(written)}). Do that "
                    "within hvd.gathered()."
                )

    # ---- gradients ----

    def open_gradients(self, pool):
        """The `Buffer` that its pieces have together, for one of them."""
        if self._gradients is None:
            self._gradients = Buffer(self.gradient_bytes) if self.is_outer else pool.take()
        self._open_pieces += 1
        return self._gradients

    def gradients_alone(self):
        """The memory of its gradients, if that is nobody else's."""
        return self._gradients.memory if self.is_outer and self._gradients is not None else None

    def close_gradients(self, pool):
        """That piece has been reduced."""
        self._open_pieces -= 1
        if self._open_pieces == 0 and not self.is_outer:
            pool.give_back(self._gradients)
            self._gradients = None

    # ---- values from elsewhere ----

    def accept(self, slot, value):
        """One parameter's whole value; all ranks have the same."""
        slot.piece.put(slot, value)
        self.has_changed()

    def put_away(self, slot):
        """A parameter that alone was shown something."""
        slot.hide()
        set_versions([slot.parameter], self._told)

    # ---- whole, in memory of its own ----

    def whole(self, wire):
        """All ranks' shares of each piece, in new memory."""
        found = [torch.empty(piece.total, dtype=piece.dtype) for piece in self.pieces]
        for values, piece in zip(found, self.pieces):
            with told_of(self.name):
                wire.gather(values, piece.shard.detach(), piece.inner).wait()
        return found

    def hold(self, wire):
        """Whole in memory that nobody else will use."""
        if self.held == 0:
            if self.is_here:
                raise RuntimeError(f"hvd.gathered() within the forward or backward of {self.name!r}, which is gathered already")
            self._require_untouched()
            self._whole = self.whole(wire)
            views = [view for piece, each in zip(self.pieces, self._whole) for view in piece.views(each)]
            for slot, view in zip(self.slots, views):
                slot.show(view)
            self.has_changed()
            set_versions(self.parameters, self._version)
            self.is_here = True
        self.held += 1

    def let_go(self):
        """This rank keeps its share of what the values are now. Those that were replaced are given up, and named."""
        self.held -= 1
        if self.held == 0:
            for piece, values in zip(self.pieces, self._whole):
                piece.keep_share(values)
            self._whole = None
            self.has_changed()
            try:
                self._require_untouched()
            finally:
                self.hide(checks=False)
