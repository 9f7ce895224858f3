"""A batch of parameters in flat memory: their values, their gradients, this rank's share of both.

Values and gradients lie in memory that the ranks of a host share, where there is room, so that collectives
work on them without a copy. Parameters become views of the values.
"""

import collections
import weakref

import torch

from rueda.torch import memory
from rueda.torch._outside import outside_graphs
from rueda.torch.sharding._layout import is_dense

TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before call to "
    "step(). Increase backward_passes_per_step to accumulate gradients locally."
)
NOT_CLEARED = (
    "backward() adds to gradients that a sharded optimizer has used in a step; those of other ranks' shares are not "
    "reduced. Call optimizer.zero_grad() after each step."
)


def room(count, dtype, zeroed=True):
    """Flat memory of ``count`` elements, shared if possible."""
    try:
        return memory.flat(count, dtype, zeroed)
    except MemoryError:
        return (torch.zeros if zeroed else torch.empty)(count, dtype=dtype)


def view_of(flat, offset, p):
    """The part of ``flat`` that holds ``p``, in its shape and, where that leaves no holes, in its strides."""
    part = flat[offset : offset + p.numel()]
    if not p.is_contiguous() and is_dense(p.shape, p.stride()):
        return part.as_strided(p.shape, p.stride(), part.storage_offset())
    return part.view(p.shape)


class Slot:
    """One parameter's place: its hook brings its gradients there.

    Knows its parameter and its optimizer weakly: what a hook holds lives as long as the parameter.
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "_parameter",
        "address",
        "batch",
        "gradient",
        "has_arrived",
        "left",
        "name",
        "offset",
        "shape",
        "stride",
        "was_used",
    )

    def __init__(self, p, name, batch, offset, owner):
        self._parameter, self._owner = weakref.ref(p), weakref.ref(owner)
        self.name, self.batch, self.offset = name, batch, offset
        value = view_of(batch.values, offset, p)
        with torch.no_grad():
            if not batch.is_shared:
                value.copy_(p)
            p.data = value
        self.address, self.shape, self.stride = value.data_ptr(), value.shape, value.stride()
        self.gradient = None  # the view of the batch's gradients that p.grad is
        self.has_arrived = False  # since the batch was reduced last
        self.was_used = False  # p.grad, in a step, and is still there
        self.left = owner._passes  # backward passes of this step that are to come

    @property
    def parameter(self):
        return self._parameter()

    form = parameter  # what has its shape and strides

    @outside_graphs
    def complete(self, p):
        """The hook: backward has finished ``p.grad``."""
        owner = self._owner()
        if owner is None or not owner._reduces:
            return
        if self.left <= 0:
            raise AssertionError(TOO_OFTEN)
        batch, gradient = self.batch, p.grad
        if self.was_used and gradient is self.gradient and gradient is not None:
            raise RuntimeError(NOT_CLEARED)
        self.was_used = False
        self.left -= 1
        batch.take(self, p)
        if (self.left == 0 or batch.frees_gradients) and not self.has_arrived:
            self.has_arrived = True
            batch.missing -= 1
            if batch.missing == 0:
                owner._launch()

    def is_in_place(self, p):
        """Whether the parameter still is what the batch's values hold."""
        return p.data_ptr() == self.address and p.stride() == self.stride and p.shape == self.shape


class Batch:
    """Of one layout.

    Parameters
    ----------
    layout : Layout
    parameters : list of torch.nn.Parameter
        All that the layout's numbers mean; these become views of ``values``.
    names : dict
        Of parameters.
    rank, size : int
    frees_gradients : bool
        Gradients are given up as soon as this rank has its share of their sum.
    owner : optimizer
    values : torch.Tensor, optional
        Flat memory for the values that all ranks have together, and that has the first rank's already.

    Attributes
    ----------
    values, gradients : torch.Tensor
        Flat, of ``size`` shares; gradients are None until some come, if they are freed.
    shard : torch.nn.Parameter
        This rank's share of the values: what the wrapped optimizer updates.
    sum : torch.Tensor
        This rank's share of the reduced gradients.
    missing : int
        Gradients that have not come since it was reduced last.
    """

    def __init__(self, layout, parameters, names, rank, size, frees_gradients, owner, values=None):
        self.layout, self.frees_gradients = layout, frees_gradients
        self.dtype = parameters[layout.places[0].parameter].dtype
        self.total, self.begin = layout.share * size, layout.share * rank
        self.end = self.begin + layout.share
        self.is_shared = values is not None
        self.values = values if self.is_shared else room(self.total, self.dtype)
        self.shard = torch.nn.Parameter(self.values[self.begin : self.end])
        if frees_gradients:
            self.gradients, self.sum = None, room(layout.share, self.dtype)
        else:
            self.gradients = room(self.total, self.dtype)
            self.sum = self.gradients[self.begin : self.end]
        self.slots = [
            Slot(parameters[place.parameter], names[parameters[place.parameter]], self, place.offset, owner)
            for place in layout.places
        ]
        self.missing = len(self.slots)
        self._reductions = collections.deque()  # under way: one of each pass
        self._has_sum = False  # a pass of this step has its place in the sum

    def take(self, slot, p):
        """Brings ``p.grad`` to its place."""
        gradient = p.grad
        if self.frees_gradients:
            if self.gradients is None:
                self._open()
            place = self.gradients.as_strided(slot.shape, slot.stride, slot.offset)
            bring = place.add_ if slot.has_arrived else place.copy_
            bring(_dense(gradient))
            p.grad = None
        elif gradient is not slot.gradient or gradient is None:
            place = slot.gradient
            if place is None:
                place = slot.gradient = view_of(self.gradients, slot.offset, p)
            place.copy_(_dense(gradient))
            p.grad = place

    def _open(self):
        self.gradients = room(self.total, self.dtype, zeroed=False)
        self.gradients[self.layout.count :].zero_()

    def supply(self):
        """What did not come, or not often enough, takes part with what there is, or zero."""
        if self.gradients is None:
            self._open()
        for slot in self.slots:
            if not slot.has_arrived:
                p = slot.parameter
                if p.grad is None:
                    view_of(self.gradients, slot.offset, p).zero_()
                else:
                    self.take(slot, p)

    def reduce(self, wire):
        """Starts the reduction of what has come; this rank gets its share of it."""
        for slot in self.slots:
            slot.has_arrived = False
        self.missing = len(self.slots)
        if not self.frees_gradients:  # an overflow of the step before may be left in what is no parameter's
            self.gradients[self.layout.count :].zero_()
        target = room(self.layout.share, self.dtype, False) if self._has_sum else self.sum
        self._reductions.append(wire.reduce(self.gradients, target))
        if self.frees_gradients:
            self._has_sum = True
            self.gradients = None  # the reduction has them

    def settle(self, waits=True):
        """Waits for the reductions that are under way, or takes those that have ended. Whether none is under way."""
        while self._reductions and (waits or self._reductions[0].has_ended()):
            target = self._reductions.popleft().wait()
            if target is not self.sum:
                self.sum.add_(target)
        return not self._reductions

    def begin_step(self, passes, after_step=False, waits=True):
        """Forgets what has come. ``waits``: for what is under way; else it ends when it ends."""
        if waits:
            self.settle()
        self._reductions.clear()
        self._has_sum = False
        self.missing = len(self.slots)
        if self.frees_gradients:
            self.gradients = None
        for slot in self.slots:
            slot.left, slot.has_arrived, slot.was_used = passes, False, after_step


def _dense(gradient):
    if gradient.requires_grad:
        gradient = gradient.detach()
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient
