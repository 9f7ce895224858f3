"""A piece: parameters of a unit that are flat in memory together, of which each rank keeps a share.

Those of one type and one param_group (or of none: frozen ones). FSDP's flat parameter.
"""

import contextlib
import math

import torch

from rueda.torch.sharding._batch import _dense, room, view_of
from rueda.torch.sharding._layout import inner, overlap

_PAGE = 256  # bytes: where the next piece of a unit begins


@contextlib.contextmanager
def told_of(name):
    """Says what to do where ranks have brought different units."""
    try:
        yield
    except Exception as error:
        if "Mismatched" in str(error):
            error.args = (
                f"{error} (this rank is at {name!r} of a model whose parameters are sharded: all ranks must run the same modules in "
                "the same order, and call state_dict() and hvd.gathered() together)",
            )
        raise


class Slot:
    """One parameter's place in a piece.

    ``form`` has its shape and strides, and no memory; ``away`` is what ``p.data`` is while the unit is not gathered: of its
    shape, and one number that is none.
    """

    __slots__ = ("__weakref__", "address", "away", "form", "has_arrived", "name", "offset", "parameter", "piece")

    def __init__(self, p, form, name, piece, offset):
        self.parameter, self.name, self.piece, self.offset = p, name, piece, offset
        self.form = torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device="meta")
        self.away = torch.full((), math.nan, dtype=form.dtype).expand(form.shape)
        self.address = None  # where the parameter's values are said to be
        self.has_arrived = False  # its gradient, since the piece was reduced last

    @property
    def shape(self):
        return self.form.shape

    @property
    def stride(self):
        """Of its values."""
        return view_of(torch.empty(self.form.numel(), device="meta"), 0, self.form).stride()

    def show(self, values):
        """The parameter gets these."""
        self.parameter.data = values
        self.address = values.data_ptr()

    def hide(self):
        self.show(self.away)

    def is_in_place(self):
        return self.parameter.data_ptr() == self.address and self.parameter.shape == self.form.shape


class Piece:
    """Of one layout.

    Parameters
    ----------
    layout : Layout
    parameters, forms : list of torch.Tensor
        What the layout's numbers mean, and what they look like.
    names : dict
    rank, size : int
    is_trained : bool
    number : int
        Of the piece among all.

    Attributes
    ----------
    shard : torch.nn.Parameter
        This rank's share of the values: what the wrapped optimizer updates.
    sum : torch.Tensor or None
        This rank's share of the reduced gradients.
    gradients_at : int
        Bytes into the unit's gradients.
    """

    def __init__(self, layout, parameters, forms, names, rank, size, is_trained, number):
        self.layout, self.is_trained = layout, is_trained
        self.unit, self.gradients_at = None, 0  # it says
        self.inner = inner(number)
        self.dtype = parameters[layout.places[0].parameter].dtype
        self.total, self.begin = layout.share * size, layout.share * rank
        self.end = self.begin + layout.share
        self.shard = torch.nn.Parameter(room(layout.share, self.dtype), requires_grad=is_trained)
        self.sum = room(layout.share, self.dtype) if is_trained else None
        self.nbytes = -(-self.total * self.shard.element_size() // _PAGE) * _PAGE
        self.slots = [
            Slot(parameters[number], forms[number], names[parameters[number]], self, offset) for number, offset in layout.places
        ]
        self._gradients = None
        self._reduction, self._target = None, None  # under way; where to, if not to the sum
        self.has_sum = False  # of this step

    # ---- values ----

    def views(self, values):
        """Each parameter's part of all ranks' shares."""
        return [view_of(values, slot.offset, slot.form) for slot in self.slots]

    def keep_share(self, values):
        """Of values that are whole."""
        with torch.no_grad():
            self.shard.copy_(values[self.begin : self.end])

    def put(self, slot, value):
        """This rank's part of one parameter's value."""
        count = slot.form.numel()
        part = overlap(slot.offset, count, self.begin, self.end)
        if part is None:
            return
        first, last = part
        if slot.form.is_contiguous():
            flat = value.detach().reshape(-1)
        else:
            flat = torch.empty(count, dtype=self.dtype)
            view_of(flat, 0, slot.form).copy_(value.detach())
        begin = slot.offset + first - self.begin
        with torch.no_grad():
            self.shard[begin : begin + last - first] = flat[first:last]

    # ---- gradients ----

    def take(self, slot, p, pool, targets):
        """Brings ``p.grad`` to its place."""
        if self._gradients is None:
            self.settle(pool, targets)  # the pass before may still be sent from there
            self._open(pool)
        place = view_of(self._gradients, slot.offset, slot.form)
        bring = place.add_ if slot.has_arrived else place.copy_
        bring(_dense(p.grad))
        p.grad = None
        slot.has_arrived = True

    def _open(self, pool):
        self._gradients = self.unit.open_gradients(pool).part(self.gradients_at, self.total, self.dtype)
        self._gradients[self.layout.count :].zero_()

    def reduce(self, wire, pool, targets):
        """Starts the reduction of what has come; what has not is zero."""
        self.settle(pool, targets)
        if self._gradients is None:
            self._open(pool)
        for slot in self.slots:
            if not slot.has_arrived:
                view_of(self._gradients, slot.offset, slot.form).zero_()
            slot.has_arrived = False
        target = self.sum
        if self.has_sum:
            self._target = targets.take()
            target = self._target.part(0, self.layout.share, self.dtype)
        gradients, self._gradients = self._gradients, None
        self._reduction = wire.reduce(gradients, target, self.inner)

    def settle(self, pool, targets):
        """Waits for the reduction, if one is under way, and gives its memory back."""
        reduction, self._reduction = self._reduction, None
        if reduction is None:
            return
        with told_of(self.unit.name):
            found = reduction.wait()
        if self._target is not None:
            self.sum.add_(found)
            targets.give_back(self._target)
            self._target = None
        self.has_sum = True
        self.unit.close_gradients(pool)

    def forget(self, pool, targets):
        """Gradients that have come, and the sum."""
        self.settle(pool, targets)
        if self._gradients is not None:
            self._gradients = None
            self.unit.close_gradients(pool)
        for slot in self.slots:
            slot.has_arrived = False
        self.has_sum = False
