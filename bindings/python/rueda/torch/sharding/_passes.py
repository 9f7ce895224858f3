"""When units are gathered, given up and reduced: as forward and backward reach them.

    forward      | unit 0 ........ | unit 1 ........ | unit 2 ........ |
    gathering    | 0 | 1           | 2               |
    backward     | unit 2 ........ | unit 1 ........ | unit 0 ........ |
    gathering    | (2, 1 are here) | 0               |
    reductions                     | 2               | 1               | 0

What comes next is what came next in the pass before. All ranks must run the same modules in the same order, as
collectives are called in it. Which parameters have got gradients on a rank decides nothing: a unit is reduced when
its backward has ended, all of its pieces.

Autograd runs its nodes latest first. So when it reaches what a module gave out, all that was computed after the
module ended is done, and with it every unit whose forward began later.
"""

import collections
import collections.abc
import weakref

import torch
from torch.utils._pytree import tree_map

from rueda.torch._outside import outside_graphs
from rueda.torch.sharding._pools import Places, Pool

_task = getattr(torch._C, "_current_graph_task_id", None)  # PyTorch 2.1; -1 outside of a backward

_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # those of a checkpoint, or None

Activation = collections.namedtuple("Activation", "numbers places begin end awaited has_begun")
Activation.__doc__ = """One forward of a module whose backward is to come: numbers of its units, and where these were;
``awaited``: of its pass, how many such there are of each unit; ``has_begun``: a list that gets an element when backward does."""


class Frame:
    """A module whose forward is running."""

    __slots__ = ("begin", "site", "units")

    def __init__(self, site, units, begin):
        self.site, self.units, self.begin = site, list(units), begin


class Passes:
    """Through a model. Knows units, not modules."""

    def __init__(self, units, wire):
        self.units, self.wire = units, wire
        for number, unit in enumerate(units):
            unit.number = number
        inner = [unit for unit in units if not unit.is_outer]
        self._places = Places(max((unit.nbytes for unit in inner), default=0))
        trained = [piece for unit in units for piece in unit.pieces if piece.is_trained]
        self._under_way = collections.deque()  # pieces that are being reduced, oldest first
        self._pool = Pool(max((unit.gradient_bytes for unit in inner), default=0), self._reclaim)
        shares = [piece.layout.share * piece.shard.element_size() for piece in trained]
        self._targets = Pool(max(shares, default=0), self._reclaim)
        self._frames, self._live, self._clock = [], [], 0
        self._ends = {}  # what a backward that is running has to finish when it ends
        self._awaited = collections.Counter()  # by numbers of units: forwards of this pass whose backward has not begun
        self._orders = {}  # whether gradients are on: the order of units in the last such pass
        self._kind, self._order, self._now, self._at = None, [], [], 0

    def tensors_kept(self):
        """(values, gradients): the memory of shares, and of what is gathered and reduced."""
        pieces = [piece for unit in self.units for piece in unit.pieces]
        places = {*self._places.buffers, *(unit.place for unit in self.units if unit.place is not None)}
        values = [piece.shard for piece in pieces] + [place.memory for place in places]
        buffers = [*self._pool.buffers, *self._targets.buffers]
        gradients = [piece.sum for piece in pieces] + [each.memory for each in buffers]
        return values, gradients + [unit.gradients_alone() for unit in self.units]

    # ---- gathering ----

    def _gather(self, unit):
        """The unit is here when this returns, and the next one is on its way."""
        if unit.is_here:
            return
        if torch.is_inference_mode_enabled():  # tensors that are made there are of no use for training
            with torch.inference_mode(False):
                self._gather(unit)
            return
        unit.load(self.wire, self._places)
        unit.show()
        self._now.append(unit)
        order, at = self._order, self._at
        if at < len(order) and order[at] is unit:
            self._at += 1
        elif unit in order[at:]:
            self._at = order.index(unit, at) + 1
        self._prefetch()

    def _prefetch(self):
        if self._at >= len(self._order):
            return
        unit = self._order[self._at]
        place = unit.place
        if not unit.is_here and place is not None and (place.holder is None or not place.holder.is_busy):
            unit.load(self.wire, self._places)

    def _begin_pass(self):
        if self._live:  # a backward that failed
            self.recover()
        if self._now:
            self._orders[self._kind] = self._now
        self._kind = torch.is_grad_enabled()
        self._order, self._now, self._at = self._orders.get(self._kind, []), [], 0
        self._awaited = collections.Counter()

    def values_have_changed(self):
        """By a step: what is gathered is old, and the next pass will begin at its beginning."""
        for unit in self.units:
            unit.has_changed()
        self._begin_pass()
        self._order = self._orders.get(True, [])
        self._prefetch()

    def rest(self):
        """Nothing is under way or remembered, so that shares may change, whatever comes of that."""
        self.recover()
        for unit in self.units:
            unit.drop()
            if unit.held:
                raise RuntimeError("optimizer.step() within hvd.gathered(): leave it first")

    def value_of(self, slot):
        """A copy of one parameter's value, whole. All ranks must call it."""
        unit = slot.piece.unit
        unit.load(self.wire, self._places)
        return unit.value_of(slot)

    # ---- forward ----

    @outside_graphs
    def enter(self, site):
        """A module's forward begins."""
        if (site.is_root or not self._frames) and not _in_backward(self._live):
            if self._frames:  # of a forward that was interrupted
                self.recover()
            self._begin_pass()
        self._clock += 1
        frame = Frame(site, (), self._clock)
        self._frames.append(frame)
        for unit in site.units:
            self._use(frame, unit)

    def _use(self, frame, unit):
        frame.units.append(unit)
        unit.uses += 1
        try:
            self._gather(unit)
        except BaseException:
            self.recover()
            raise
        if _in_backward(self._live):
            unit.recomputed = unit.place

    @outside_graphs
    def reach(self, unit):
        """A parameter is used by the module that is running, which is not the one that has it."""
        if self._frames:
            unit.live_alone()
            self._use(self._frames[-1], unit)

    @outside_graphs
    def leave(self, site, output):
        """A module's forward has ended; without output: by an exception. What to give out instead, or None."""
        if not any(frame.site is site for frame in self._frames):
            return None  # given up already
        frame = self._frames.pop()
        while frame.site is not site:  # ended by an exception, and nobody told
            self._close(frame)
            frame = self._frames.pop()
        try:
            if output is None or not frame.units:
                return None
            given = list(tensors_in(output))
            if any(unit.has_memory_of(tensor) for unit in frame.units for tensor in given):
                return self._clone_parameters(frame, output)
            if torch.is_grad_enabled():
                self._await_backward(frame, given)
            return None
        finally:
            self._close(frame)

    def _clone_parameters(self, frame, output):
        """A module gives out a parameter, or a view of one: that will not be there any more."""

        def clone(each):
            is_view = isinstance(each, torch.Tensor) and any(unit.has_memory_of(each) for unit in frame.units)
            return each.clone() if is_view else each

        output = tree_map(clone, output)
        given = list(tensors_in(output))
        if any(unit.has_memory_of(tensor) for unit in frame.units for tensor in given):
            raise RuntimeError(
                f"{type(frame.site.module).__name__} gives out a view of its parameters, which are sharded and no longer gathered "
                "after its forward: give out a clone()"
            )
        if torch.is_grad_enabled():
            self._await_backward(frame, given)
        return output

    def _close(self, frame):
        for unit in frame.units:
            unit.uses -= 1
            unit.hide_if_idle()

    def _await_backward(self, frame, tensors):
        self._clock += 1
        # What a checkpoint will compute again is where the units will be then.
        numbers, is_saved = [unit.number for unit in frame.units], _hooks is None or _hooks(True) is None
        places = [unit.place if is_saved else None for unit in frame.units]
        # Through what a checkpoint without a backward of its own computes again no backward will come.
        is_awaited = not _in_backward(self._live) or (_hooks is not None and is_saved)
        activation = Activation(numbers, places, frame.begin, self._clock, self._awaited, [] if is_awaited else [True])
        passes = weakref.ref(self)

        def hook(gradient):
            if passes() is not None:
                passes().begin_backward(activation)

        outside_graphs(hook)
        found = False
        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(hook)
                base = tensor._base  # of a view that is changed in place the hook is lost, of its base it is not
                if base is not None and base.grad_fn is not None:
                    base.register_hook(hook)
                found = True
        if found and is_awaited:
            self._awaited.update(numbers)

    # ---- backward ----

    @outside_graphs
    def begin_backward(self, activation):
        """Autograd has reached what a module gave out."""
        mine = [self.units[number] for number in activation.numbers]
        for unit in list(self._live):
            if unit.live >= activation.end and unit not in mine:
                self._finish(unit)
        if not activation.has_begun:
            activation.has_begun.append(True)
            activation.awaited.subtract(activation.numbers)
        for unit, place in zip(mine, activation.places):
            if unit.live is None:
                unit.live = activation.begin
                self._live.append(unit)
                self._schedule(unit)
            unit.live, unit.awaited = min(unit.live, activation.begin), activation.awaited
            self._gather(unit)
            for each in (unit.recomputed, place):
                if each is not None:
                    unit.be_at(each)

    def _schedule(self, unit):
        """Gradients of it come. What is left of it is done when this backward, or this part of one, ends."""
        unit.owes = True
        backward = _task() if _task is not None else unit
        if backward not in self._ends:
            self._ends[backward] = []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(backward))
        if unit not in self._ends[backward]:
            self._ends[backward].append(unit)

    def _end(self, backward):
        """Latest units first, whichever got gradients first on this rank."""
        for unit in sorted(self._ends.pop(backward, ()), key=lambda each: each.number, reverse=True):
            unit.awaited = None
            if unit.owes:
                self._take_left(unit)
            self._finish(unit)

    def _finish(self, unit):
        awaited, unit.awaited, unit.recomputed = unit.awaited, None, None
        if unit.live is not None:
            unit.live = None
            self._live.remove(unit)
        unit.hide_if_idle()
        if awaited is None or awaited[unit.number] <= 0:
            self._reduce(unit)

    @outside_graphs
    def complete(self, slot, p):
        """The hook of a parameter: backward has finished ``p.grad``."""
        unit = slot.piece.unit
        if unit.live is None and not unit.held:
            p.grad = None
            raise RuntimeError(
                f"{slot.name} was used when it was not gathered: its module was not called, or not through its forward. Call the "
                "model, not a method of it, or do so within hvd.gathered()."
            )
        if unit.live is None:  # until the end, as other ranks may come to units in another order
            self._schedule(unit)
        else:
            slot.piece.take(slot, p, self._pool, self._targets)

    # ---- reductions ----

    def _reduce(self, unit):
        """Its pieces one after another, also those of which this rank has no gradients: others may have some."""
        if not unit.owes:
            return
        unit.owes = False
        for piece in unit.pieces:
            if piece.is_trained:
                piece.reduce(self.wire, self._pool, self._targets)
                self._under_way.append(piece)

    def _take_left(self, unit):
        """Gradients that are not in their places yet."""
        for slot in unit.slots:
            if slot.parameter.grad is not None and slot.piece.is_trained:
                slot.piece.take(slot, slot.parameter, self._pool, self._targets)
                unit.owes = True

    def _reclaim(self):
        """Waits for the oldest reduction. Whether there was one."""
        if not self._under_way:
            return False
        self._under_way.popleft().settle(self._pool, self._targets)
        return True

    def reduce_all(self, pieces):
        """All that has come, also gradients that were not computed by backward, into the sums of these pieces."""
        for unit in self.units:
            self._take_left(unit)
            self._reduce(unit)
        while self._reclaim():
            pass
        for piece in pieces:
            if not piece.has_sum:
                piece.sum.zero_()
                piece.has_sum = True

    def forget(self, pieces):
        """Gradients of this step."""
        while self._reclaim():
            pass
        for piece in pieces:
            piece.forget(self._pool, self._targets)
        for unit in self.units:
            unit.owes = False
        if not self._frames and not _in_backward(()):
            self.recover()

    def recover(self):
        """After an exception: no module is running, and no backward."""
        frames, self._frames = self._frames, []
        for frame in frames:
            for unit in frame.units:
                unit.uses -= 1
        for unit in self._live:
            unit.live = None
        self._live, self._ends = [], {}
        for unit in self.units:
            unit.awaited, unit.recomputed = None, None
            unit.hide_if_idle()


def _in_backward(live):
    return _task() != -1 if _task is not None else bool(live)


def tensors_in(output):
    """Tensors of what a module gave out: in tuples, lists, mappings, dataclasses and other objects."""
    seen, left = set(), [output]
    while left:
        each = left.pop()
        if isinstance(each, torch.Tensor):
            yield each
        elif id(each) in seen or isinstance(each, (torch.nn.Module, type, str, int, float)):
            continue
        else:
            seen.add(id(each))
            if isinstance(each, collections.abc.Mapping):
                left += each.values()
            elif isinstance(each, (list, tuple, set)):
                left += each
            else:
                left += getattr(each, "__dict__", {}).values()
