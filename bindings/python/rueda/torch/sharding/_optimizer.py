"""A sharded optimizer's step.

    backward:  gradients of batch n complete -> its reduction starts | gradients of batch n - 1 ... | ...
    step():    what did not come counts as zero -> wait for this rank's shares -> the wrapped optimizer updates
               them -> every rank gets the other ranks' shares of the new values

``param_groups`` has this rank's shares as parameters, so that whatever works on an optimizer's parameters and their
gradients (schedulers, GradScaler) does so once for every element, on one rank.
"""

import collections
import contextlib
import functools
import math
import operator
import os
import types
import warnings
import weakref

import torch

from rueda import _ffi
from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.torch import _owners, _plain
from rueda.torch._distributed import _begin_mark, _Distributed, _end_mark, _some, derived
from rueda.torch._grad_scaler import asks_for_gradients
from rueda.torch._gradient import on_gradient_complete
from rueda.torch._outside import outside_graphs
from rueda.torch.sharding import _budget, _keeping, _layout, _opening, _saving, _state, _stepping
from rueda.torch.sharding._arrivals import Arrivals
from rueda.torch.sharding._batch import Batch, view_of
from rueda.torch.sharding._elementwise import kept_for_each_element, require_elementwise
from rueda.torch.sharding._host_values import room_of_all
from rueda.torch.sharding._hosts import Hosts
from rueda.torch.sharding._journal import Journal
from rueda.torch.sharding._sources import Plain
from rueda.torch.sharding._wire import Wire, ranks_of

STAGES = "state", "gradients", "parameters"


def wrap(
    optimizer, names, stage, share, op, process_set, predivide, passes, state_dtype=None, offload=None, kind=None, model=None
):
    """The sharded form of an optimizer, which shares its options and its state with it.

    ``kind``: its class, if that is not `Sharded`; ``model``: what that knows of the model.
    """
    if stage not in STAGES:
        raise ValueError(f"shard={stage!r}: there are {', '.join(map(repr, STAGES))}, and None")
    if share not in (None, "host"):
        raise ValueError(f"share={share!r}: there are 'host' and None")
    if op not in (basics.Average, basics.Sum):
        raise ValueError("shard= reduces with op=Average or Sum")
    for p in names if model is None else (p for group in optimizer.param_groups for p in group["params"]):
        if not (p.is_cpu or (p.is_meta and stage == "parameters")) or not p.dtype.is_floating_point:
            raise ValueError(
                f"shard={stage!r}: {names[p]} is {p.dtype} on {p.device}; floating-point parameters on the cpu can be sharded"
            )
    require_elementwise(optimizer)
    codec = _keeping.codec_for(state_dtype)
    result = derived(optimizer, kind or Sharded)
    result._model = model
    ranks = ranks_of(process_set)
    hosts = Hosts(ranks) if share == "host" else None
    wire = Wire(ranks if hosts is None else hosts.ranks, op, predivide)
    elements = kept_for_each_element(optimizer)
    before = [list(group["params"]) for group in optimizer.param_groups]
    try:
        keeping = _keeping.keeping_for(codec, offload, wire)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        _budget.require(parameters, elements, stage, state_dtype, keeping is not None and keeping.file is not None, wire)
        result._setup(optimizer, names, stage, hosts, wire, passes, keeping, elements)
    except BaseException:
        for group, parameters in zip(optimizer.param_groups, before):
            group["params"] = parameters  # the plain optimizer can be used, or wrapped otherwise
        _end(result.__dict__.get("_hooks", {}), wire, hosts, None)
        raise
    return result


def _refuse_steps(plain):
    """The wrapped optimizer has shares as its parameters, whose gradients are not reduced in its own ``step()``."""

    @functools.wraps(plain.step)  # also with the marks of a scheduler
    def step(optimizer, *args, **kwargs):
        raise RuntimeError(
            "step() of an optimizer that was wrapped by a DistributedOptimizer. Use what DistributedOptimizer() returned."
        )

    plain.step = types.MethodType(step, plain)


class Sharded:
    """What the class of a sharded optimizer has before the wrapped optimizer's class."""

    def _setup(self, plain, names, stage, hosts, wire, passes, keeping, elements):
        self._require_state_on_all_or_none(wire)
        self._plain = _plain.Plain(plain, self)
        self._elements = elements  # that state has for each element: {key: bytes}
        self._keeping = keeping  # None: the state stays as it is between steps
        self._failure = None  # of a step, after which there can be no other
        self._parameter_names, self._stage, self._wire, self._passes = names, stage, wire, passes
        self._hosts = hosts  # of one copy of the values on each, or None
        alone = hosts is not None and hosts.across.size == 1 < hosts.host.size
        self._journal = Journal(hosts.host) if alone else None  # of steps on one host
        self._reduces = True  # False within no_sync()
        self._launched = 0  # reductions of this step, in the order of batches, pass after pass
        self._settled = self._synchronized = False
        self._should_synchronize = True
        self._batches, self._frozen, self._lost = [], [], []
        self._flying = collections.deque()  # batches whose gradients are given up when they are reduced
        self._originals = []  # of each group, the parameters that it was given
        self._hooks = {}  # parameter's number: what removes its hook
        self._shard_all(self.__dict__["param_groups"])
        self._arrivals = self._late_arrivals()
        if self._arrivals is not None:
            self._arrivals.watch(self._batches)
        _refuse_steps(plain)
        end = weakref.finalize(self, _end, self._hooks, wire, hosts, self._arrivals)
        end.atexit = False

    def _require_state_on_all_or_none(self, wire):
        has_state = float(any(self.__dict__["state"].values()))
        if wire.combine(has_state, _ffi.MIN) != wire.combine(has_state, _ffi.MAX):
            raise ValueError(
                "only some ranks have state in the optimizer that is to be sharded: load it on all, or "
                "broadcast_optimizer_state before"
            )

    def _shard_all(self, groups):
        for group in groups:
            self._shard_group(group)
        self._in_order()

    def _shard_group(self, group):
        """Lays a group's parameters out, and puts this rank's shares in their place."""
        parameters = list(group["params"])
        self._originals.append(parameters)
        trained = [p for p in parameters if p.requires_grad]
        self._frozen += [p for p in parameters if not p.requires_grad]
        for p in trained:
            before = _owners.own(p, self)
            if before is not None and before is not self:
                before._lose(p)
        counts, itemsizes = [p.numel() for p in trained], [p.element_size() for p in trained]
        most = {}
        if self._stage == "gradients":
            most["most_bytes"] = _layout.small(sum(map(operator.mul, counts, itemsizes)))
        layouts = _layout.batches([p.dtype for p in trained], counts, itemsizes, self._wire.size, **most)
        state, batches = self.__dict__["state"], []
        for layout in layouts:
            values = None if self._hosts is None else self._values_of_host(layout, trained)
            batch = Batch(
                layout,
                trained,
                self._parameter_names,
                self._wire.rank,
                self._wire.size,
                self._stage == "gradients",
                self,
                values,
            )
            _state.move_to_shard(state, batch, self._elements)
            if batch.shard in state:
                state[batch.shard] = self._keep(batch, state[batch.shard])
            for slot in batch.slots:
                hook = on_gradient_complete(slot.parameter, slot.complete)
                self._hooks[id(slot)] = hook
            batches.append(batch)
        if self._journal is not None:
            self._journal.watch(batches)
        group["params"] = [batch.shard for batch in batches]
        self._batches += batches

    def _values_of_host(self, layout, parameters):
        """One memory for a batch's values, with those of the first rank of all."""
        first = parameters[layout.places[0].parameter]
        hosts = self._hosts
        values = room_of_all(hosts.host, layout.share * self._wire.size, first.dtype)
        if hosts.host.rank == 0:
            with torch.no_grad():
                for place in layout.places:
                    p = parameters[place.parameter]
                    view_of(values, place.offset, p).copy_(p)
            hosts.across.broadcast(values)
        hosts.host.barrier()
        return values

    def _late_arrivals(self):
        """None: values are whole after a step, not when modules need them."""
        return None if self._model is None else Arrivals(self._model.module)

    def _in_order(self):
        """Batches come as backward reaches their last parameters."""
        order = {p: n for n, p in enumerate(p for group in self._originals for p in group)}
        self._batches.sort(key=lambda batch: -order[batch.slots[-1].parameter])

    def _lose(self, p):
        """A later optimizer has been made for the parameter."""
        self._lost.append(self._parameter_names[p])
        if self._arrivals is not None:
            self._arrivals.end()
        for batch in self._batches:
            for slot in batch.slots:
                if slot.parameter is p:
                    self._hooks.pop(id(slot))()

    def __reduce_ex__(self, protocol):
        raise TypeError("a sharded optimizer cannot be copied or pickled; use its state_dict()")

    # ---- backward ----

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of backward passes inside stay on this rank and add up, whole, in ``p.grad``."""
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def set_backward_passes_per_step(self, passes):
        """Number of backward passes whose gradients are summed."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes = passes
        self._forget()

    def _reductions(self):
        """How many a step has."""
        return len(self._batches) * (self._passes if self._stage == "gradients" else 1)

    def _launch(self):
        """Starts the reductions whose turn it is."""
        self._settled = self._synchronized = False
        batches, count = self._batches, len(self._batches)
        while self._launched < self._reductions():
            batch = batches[self._launched % count]
            if batch.missing:
                return
            batch.reduce(self._wire)
            self._launched += 1
            if batch.frees_gradients:
                self._flying.append(batch)
                while len(self._flying) > 1 and self._flying[0].settle(waits=False):  # peers may be far behind
                    self._flying.popleft()

    @outside_graphs
    def _reduce_all(self):
        self._check_places()
        if self._arrivals is not None:
            self._arrivals.wait()  # what no module has used
        count = len(self._batches)
        while self._launched < self._reductions():
            batch = self._batches[self._launched % count]
            if batch.missing:
                batch.supply()
            if batch.frees_gradients and self._launched > 0:
                self._batches[(self._launched - 1) % count].settle()
            batch.reduce(self._wire)
            self._launched += 1
        for batch in self._batches:
            batch.settle()
            batch.shard.grad = batch.sum

    def _check_places(self):
        """RuntimeError names parameters that have been changed from outside."""
        if self._lost:
            raise RuntimeError(
                "A later DistributedOptimizer was made for parameters of this one "
                f"({_some(self._lost)}). Use that one."
            )
        moved, frozen = [], []
        for batch in self._batches:
            for slot in batch.slots:
                p = slot.parameter
                if p is None or not slot.is_in_place(p):
                    moved.append(slot.name)
                elif not p.requires_grad:
                    frozen.append(slot.name)
        if moved:
            raise RuntimeError(
                f"Parameters of a sharded optimizer were replaced ({_some(moved)}): p.data was set, or the model resized, "
                "moved or dropped. Change values in place (p.copy_, load_state_dict), or wrap the optimizer after the change."
            )
        frozen += [self._parameter_names[p] for p in self._frozen if p.requires_grad]
        if frozen:
            raise RuntimeError(
                f"requires_grad was changed after the optimizer was sharded ({_some(frozen)}). Wrap a new one."
            )

    def _settle(self):
        if not (self._synchronized or self._settled):
            self._reduce_all()
            self._settled = True

    @outside_graphs
    def synchronize(self):
        """Waits until this rank's shares are reduced; they are gradients of ``param_groups``' parameters then."""
        if not self._settled:
            self._reduce_all()
        self._settled, self._synchronized = False, True

    skip_synchronize = _Distributed.skip_synchronize

    @property
    def param_groups(self):
        if not (self._synchronized or self._settled) and self._should_synchronize and asks_for_gradients():
            self._settle()
            self._agree_on_overflow()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups

    def _agree_on_overflow(self):
        """Where one rank's share has a number that is none, all have, so that GradScaler decides alike."""
        good = all(bool(torch.isfinite(batch.sum).all()) for batch in self._batches)
        if self._wire.combine(float(good), _ffi.MIN) == 0 and self._batches:
            self._batches[0].sum[0] = math.inf

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """``torch.nn.utils.clip_grad_norm_`` of the reduced gradients of all parameters, whoever has them.

        All ranks must call it. Returns the norm before clipping, the same on all.
        """
        self._settle()
        norm_type = float(norm_type)
        norms = [torch.linalg.vector_norm(batch.sum.float(), norm_type).item() for batch in self._batches]
        if math.isinf(norm_type):
            total = self._wire.combine(max(norms, default=0.0), _ffi.MAX)
        else:
            total = self._wire.combine(math.fsum(norm**norm_type for norm in norms), _ffi.SUM)
            total = total ** (1 / norm_type)
        if error_if_nonfinite and not math.isfinite(total):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped."
            )
        factor = max_norm / (total + 1e-6)
        if not factor >= 1:
            for batch in self._batches:
                batch.sum.mul_(factor)
        return torch.tensor(total)

    # ---- the step ----

    def step(self, closure=None):
        """Waits for this rank's shares, updates them, and gets the other ranks'. ``closure`` as in the wrapped optimizer."""
        try:
            result = self._step(super().step, closure)
        except BaseException:
            self._abandon()
            raise
        self._forget(after_step=True)
        self._plain.note_step()
        return result

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    def _step(self, step, closure):
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). Call step() within optimizer.skip_synchronize()."
                )
            elif not self._settled and closure is None:
                self._reduce_all()
            if closure is not None:
                closure = functools.partial(self._evaluate, closure)
        shown = _begin_mark()
        try:
            with self._as_a_whole():
                if self._hosts is not None and closure is None:
                    self._hosts.host.barrier()  # nobody reads the values of before any more
                result = self._update(step, closure)
                self._gather()
            return result
        finally:
            _end_mark(shown)

    outside_graphs(_step, calls_too=False)

    @contextlib.contextmanager
    def _as_a_whole(self):
        """What happens to the values inside happens on all ranks of the host, or on none."""
        journal = self._journal
        if journal is None:
            yield
            return
        journal.begin()
        try:
            yield
        except BaseException as error:
            journal.give_up(isinstance(error, HorovodInternalError))
            raise
        journal.end()

    def _update(self, step, closure):
        """The wrapped optimizer's step: of all shares, or of one after another if their state is kept elsewhere."""
        if self._keeping is None and self._journal is None:
            return step(closure) if closure is not None else step()
        if self._failure is not None:
            raise RuntimeError(f"an earlier step failed, begin again from a checkpoint: {self._failure}")
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        by_batch = functools.partial(
            _stepping.step_by_batch,
            self,
            _stepping.unhooked(next(kind for kind in type(self).__mro__ if not issubclass(kind, Sharded))),
            self._keeping,
            self._journal,
            self.__dict__["param_groups"],
            self._batches,
        )
        if self._keeping is None:
            _stepping.hooked(self, by_batch)
            return result
        try:
            with self._keeping.errors_together(self._wire):
                _stepping.hooked(self, by_batch)
        except (OSError, RuntimeError) as error:
            self._failure = error
            self._forget(after_step=True)
            raise
        return result

    _update = outside_graphs(_update)

    def _evaluate(self, closure):
        """Calls a closure, reduces what it computed, and its loss."""
        loss = closure()
        self._reduce_all()
        if self._hosts is not None:
            self._hosts.host.barrier()
        if loss is None:
            return None
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        value = self._wire.combine(value, _ffi.SUM) / self._wire.size
        return torch.full_like(loss.detach(), value) if isinstance(loss, torch.Tensor) else value

    @outside_graphs
    def _gather(self):
        """Every rank's share of the new values to every rank."""
        if self._hosts is None:
            in_forward = self._batches[::-1]
            started = [self._wire.gather(batch.values, batch.shard.detach()) for batch in in_forward]
            if self._arrivals is not None:
                self._arrivals.start(dict(zip(in_forward, started)))
                return
        else:
            started = [self._hosts.gather(batch) for batch in self._batches]
        for each in started:
            each.wait()
        if self._journal is not None:
            self._journal.all_updated()
        if self._hosts is not None:
            self._hosts.host.barrier()

    def _forget(self, after_step=False, waits=True):
        """Of this step, or of one that is given up. ``waits``: for what is under way; else it ends when it ends."""
        self._launched = 0
        self._settled = self._synchronized = False
        self._flying.clear()
        for batch in self._batches:
            batch.begin_step(self._passes, after_step, waits)

    def _abandon(self):
        """A step that failed: the next one begins anew."""
        self._forget(after_step=True, waits=False)

    def zero_grad(self, set_to_none=True):
        """Of the model's parameters; refused while gradients are being reduced."""
        if self._launched and not (self._settled or self._synchronized):
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        self._forget()
        for parameters in self._originals:
            for p in parameters:
                if p.grad is None:
                    continue
                if set_to_none:
                    p.grad = None
                else:
                    p.grad = p.grad.detach().zero_() if p.grad.requires_grad else p.grad.zero_()

    def tensors_kept(self):
        """By what they are for, besides ``state``: for `memory_report`."""
        return {
            "parameters": [batch.values for batch in self._batches],
            "gradients": [each for batch in self._batches for each in (batch.gradients, batch.sum)],
            "state": self._state_kept(),
        }

    def _state_kept(self):
        """What is encoded between steps."""
        return [getattr(value, "parts", None) for each in self.__dict__["state"].values() for value in each.values()]

    # ---- groups and state ----

    def add_param_group(self, group):
        """As in the wrapped optimizer; the new parameters are sharded too. All ranks must call it."""
        groups = self.__dict__["param_groups"]
        shards = [group["params"] for group in groups]
        for each, parameters in zip(groups, self._originals):
            each["params"] = parameters  # what the check for duplicates looks at
        try:
            super().add_param_group(group)
        finally:
            for each, parameters in zip(groups, shards):
                each["params"] = parameters
        number = len(groups) - 1
        for index, p in enumerate(groups[-1]["params"]):
            self._parameter_names.setdefault(p, f"group {number}, parameter {index}")
        self._shard_group(groups[-1])
        self._in_order()
        if self._arrivals is not None:
            self._arrivals.watch(self._batches)
        self._forget()

    def options(self):
        """Of each group, all but its parameters."""
        return [{k: v for k, v in group.items() if k != "params"} for group in self.__dict__["param_groups"]]

    def set_options(self, options):
        for group, given in zip(self.__dict__["param_groups"], options):
            group.update(given)

    def state_dict(self):
        """The plain optimizer's, whole, on every rank. All ranks must call it."""
        groups, state = self.__dict__["param_groups"], self.__dict__["state"]
        result = _state.gathered(groups, self._originals, self._batches, state, self._wire)
        if self._keeping is not None:
            result["rueda"] = {"roundings": self._keeping.roundings}
        return result

    def load_state_dict(self, state_dict):
        """Of the plain optimizer or of a sharded one, of any number of ranks: each rank takes its share.

        A path instead: `load_state`.
        """
        if isinstance(state_dict, (str, os.PathLike)):
            self.load_state(state_dict)
            return
        source = Plain(state_dict)
        self._put_state(source, self._shares_of(source))

    def save_state(self, path):
        """Writes the state to a folder, each rank its shares, one batch after another. All ranks must call it.

        An error on one rank is one on all. It, or a rank's death, leaves what had been saved there as it was.
        """
        groups, state = self.__dict__["param_groups"], self.__dict__["state"]
        roundings = self._keeping.roundings if self._keeping is not None else 0
        _saving.save(path, self._wire, groups, self._originals, self._batches, state, self._parameter_names, roundings)

    def load_state(self, path):
        """What `save_state` wrote, on any number of ranks, or a folder of DeepSpeed's. All ranks must call it.

        Each rank reads its shares. An error on one rank is one on all, which keep the state that they have.
        """
        with _saving.together(self._wire, f"the state of the optimizer could not be loaded from {path}"):
            source = _opening.source_at(path)
            loaded = self._shares_of(source)
        self._put_state(source, loaded)

    def _shares_of(self, source):
        return _state.shares(self._originals, self._batches, source, self._parameter_names, self._elements, self._keep)

    def _keep(self, batch, parts):
        """State that was loaded, as it is until the next step."""
        parts = _keeping.as_the_optimizer_keeps(self, batch, parts)
        if self._keeping is None:
            return parts
        parts = self._keeping.keep(batch, parts, by_chance=False)
        self._keeping.rest()
        return parts

    def _put_state(self, source, loaded):
        self._forget()
        self._failure = None
        if self._keeping is not None:
            self._keeping.roundings = source.roundings
        _state.put(self.__dict__["param_groups"], self.__dict__["state"], source, loaded)


def _end(hooks, wire, hosts, arrivals):
    """Of an optimizer that nobody has any more: its parameters are free of it."""
    if arrivals is not None:
        arrivals.end()
    for remove in hooks.values():
        remove()
    wire.close()
    if hosts is not None:
        hosts.close()
