"""What a `DistributedOptimizer` does when it steps; `_gradient` is what it does while backward runs."""

import contextlib
import functools
import operator
import warnings
import weakref

import torch

from rueda import _marks
from rueda._numbers import whole_number
from rueda._runtime import runtime
from rueda.common import basics
from rueda.elastic._points import points
from rueda.torch import _async, _epochs, _guarded, _lent_memory, _owners, _ranges
from rueda.torch._compress_reducer import Reducer
from rueda.torch._grad_scaler import asks_for_gradients
from rueda.torch._gradient import Gradient, Group, Step, on_gradient_complete
from rueda.torch._gradient_buffers import GradientBuffer
from rueda.torch._outside import outside_graphs
from rueda.torch._plain import Plain, empty, same_objects
from rueda.torch._policies import policy_for
from rueda.torch._reduction import give_up
from rueda.torch.replicas import check_replicas

# After one reduction failed, how long the others of the step may take to end: they fail or end
# within moments, unless a peer never submitted them.
_SETTLE_SECONDS = 5



@outside_graphs
def _begin_mark():
    _marks.begin_step()
    return _ranges.enter("rueda:optimizer.step")


@outside_graphs
def _end_mark(shown):
    _ranges.leave(shown)
    _marks.end_step()


def derived(optimizer, kind):
    """What wraps an optimizer: an instance of its class with ``kind`` before it, and of its options and state."""
    wrapped = type(optimizer)
    result = type(wrapped.__name__, (kind, wrapped), {})
    result = result.__new__(result)
    # A learning-rate scheduler made before may have put its own step on the instance.
    result.__dict__.update((k, v) for k, v in vars(optimizer).items() if k != "step")
    return result


def has_peers(process_set):
    """Whether gradients are reduced: who is no member, or the only one and stays it, uses its own."""
    return bool(process_set.included()) and (process_set.size() > 1 or _epochs.is_elastic())


class _Distributed:
    """What the class made by `DistributedOptimizer` has before the wrapped optimizer's class."""

    _takes_hooks = True  # of communication (`rueda.torch.relaxed`)
    _sends_gradients = True  # and nothing else, so that a step can be made again
    _gradients_at_once = 1  # of a parameter: one that is reduced, or several
    _counts_steps = False  # so that a step of the plain optimizer's own would be missed

    def _setup(self, plain, names, settings, passes, groups, sparse_as_dense, buffers, lends=False):
        self._parameter_names = names
        self._reduce_settings = settings
        self._has_peers = has_peers(settings.process_set)
        self._this_step = Step(passes)
        self._sparse_as_dense = sparse_as_dense
        self._this_step.lends = lends and self._has_peers and _lent_memory.is_possible()
        self._reduce_policy = self._make_policy(settings, sparse_as_dense)
        self._is_guarded = False  # a step is repeated when a rank was lost (hvd.elastic.guard)
        self._gradient_buffers = buffers
        self._gradient_of = {}  # parameter: its Gradient
        self._gradient_hooks = {}  # parameter: function that removes its hook
        self._lost = []  # names of parameters that a later optimizer owns
        self._should_synchronize = True
        self._check_every, self._steps = None, 0
        self._plain = Plain(plain, self)
        self._seen = []  # the lists of parameters of all groups, as they were
        self._frozen = []  # those of them that need no gradient
        if self._has_peers:
            self._look_at_groups()
            for members in groups:
                Group([self._gradient_of[p] for p in members])
            self._plain.refuse_steps()
        _epochs.follow(self)
        end = weakref.finalize(self, _end, self._gradient_hooks, self._gradient_of, self._this_step)
        end.atexit = False

    def _make_policy(self, settings, sparse_as_dense):
        return policy_for(settings, sparse_as_dense)

    def _use_policy(self, policy):
        """Another way to reduce gradients, which may be elsewhere than they are; also for who is alone."""
        if self._is_guarded:
            raise ValueError("this optimizer is guarded (hvd.elastic.guard): its gradients are reduced as they are")
        self._reduce_policy = policy
        self._this_step.lends = False
        if not self._has_peers:
            self._has_peers = True
            self._look_at_groups()
            self._plain.refuse_steps()
        else:
            for gradient in self._gradient_of.values():
                gradient.policy = policy
            policy.adopt(list(self._gradient_of.values()))

    def _can_repeat_steps(self):
        """Whether a step that was broken off can be made again with other ranks."""
        return self._is_guarded or (self._sends_gradients and _guarded.tolerant(self._reduce_policy) is not None)

    def _guard(self, replicas):
        """From now on it is, while a function of `rueda.elastic.run` trains. ``replicas``: whose gradients count."""
        if self._is_guarded:
            self._reduce_policy.use(replicas)
            return
        if self._this_step.pending:
            raise RuntimeError("guard() is called before backward, not between it and step()")
        self._reduce_policy, self._is_guarded = _guarded.tolerant(self._reduce_policy), True
        self._reduce_policy.use(replicas)
        self.contributors = self._reduce_settings.process_set.size()
        for p, gradient in self._gradient_of.items():
            gradient.policy, gradient.in_place = self._reduce_policy, None
            if self._this_step.lends:  # the results' memory, too
                self._gradient_hooks[p] = _lent_memory.watched(p, self._gradient_hooks[p], 1)

    def __reduce_ex__(self, protocol):
        """A copy, by `copy` or `pickle`, is of the wrapped class, with options and state, and can be wrapped."""
        (wrapped,) = [kind for kind in type(self).__bases__ if not issubclass(kind, _Distributed)]
        return empty, (wrapped,), self.__getstate__()

    def _watch(self, p):
        before = _owners.own(p, self)
        if before is not None and before is not self:
            before._lose(p)
        gradient = Gradient(p, self, self._this_step, self._reduce_policy)
        if self._gradient_buffers is not None:
            gradient.buffer = GradientBuffer(self._gradient_buffers)
        self._gradient_of[p] = gradient
        remove = on_gradient_complete(p, gradient.complete)
        if self._this_step.lends:
            remove = _lent_memory.watched(p, remove, self._gradients_at_once)
        self._gradient_hooks[p] = remove
        runtime.reserve(1)

    def enter_epoch(self):
        """The ranks have changed: gradients of the step under way are forgotten, and what the ranks had agreed on."""
        step, gradients = self._this_step, self._gradient_of.values()
        _lent_memory.window.close()
        give_up(step.pending, 0)
        if points.is_healing:
            if self._is_guarded:
                return _guarded.enter_epoch(step, gradients)
            if any(gradient.has_computed() for gradient in gradients):
                points.spoil()
        step.forget(gradients)
        step.synchronized = step.settled = False
        give_up((gradient.in_place for gradient in gradients if gradient.in_place is not None), 0)
        for gradient in gradients:
            gradient.forget()
            gradient.is_sparse = None
            gradient.parameter.grad = None  # it may be reduced in part
        self._steps = 0  # since when all ranks count alike

    def _groups_changed(self):
        """Whether parameters came, went, or are trained that were not, since `_look_at_groups`."""
        groups, seen = self.__dict__["param_groups"], self._seen
        if len(groups) != len(seen) or any([p.requires_grad for p in self._frozen]):
            return True
        for group, before in zip(groups, seen):
            parameters = group["params"]
            if len(parameters) != len(before) or not all(map(operator.is_, parameters, before)):
                return True
        return False

    def _look_at_groups(self):
        """Reduces from now on whatever the groups have that needs a gradient.

        All ranks must have come to the same groups. Returns the parameters that are in none any more.
        """
        self._seen = [list(group["params"]) for group in self.__dict__["param_groups"]]
        self._name_new(self._seen)
        present = {p for parameters in self._seen for p in parameters}
        unwatched = [p for parameters in self._seen for p in parameters if p not in self._gradient_of]
        self._frozen = [p for p in unwatched if not p.requires_grad]
        trained = [p for p in unwatched if p.requires_grad]
        for p in trained:
            self._watch(p)
        self._reduce_policy.adopt([self._gradient_of[p] for p in trained])
        return [p for p in self._gradient_of if p not in present]

    def _name_new(self, groups):
        """Names those parameters of all groups that have none, after their places, as all ranks see them."""
        names = self._parameter_names
        taken = set(names.values())
        for number, parameters in enumerate(groups):
            for index, p in enumerate(parameters):
                if p not in names:
                    names[p] = f"allreduce.noname.{number}.{index}"
                    while names[p] in taken:
                        names[p] += ".again"
                    taken.add(names[p])

    def _leave(self, p):
        """Of a parameter that no group has any more; its group of gradients still counts on it."""
        if self._gradient_of[p].group is None:
            del self._gradient_of[p], self._parameter_names[p]
            if p in self._gradient_hooks:
                self._release(p)

    def _release(self, p):
        self._gradient_hooks.pop(p)()
        runtime.reserve(-1)

    def _lose(self, p):
        """A later optimizer has been made for the parameter."""
        self._release(p)
        self._lost.append(self._parameter_names[p])

    @property
    def param_groups(self):
        if not (self._this_step.synchronized or self._this_step.settled) and self._should_synchronize:
            if asks_for_gradients():
                self._settle_for_scaler()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups
        self._plain.follow(groups)

    def set_backward_passes_per_step(self, passes):
        """Number of backward passes whose gradients are summed before they are reduced."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._this_step.set_passes(passes, self._gradient_of.values())

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of backward passes inside stay on this rank.

        They add up in ``p.grad`` and are reduced with those of the next backward pass outside. For
        accumulation over a varying number of passes, and for a loss that passes through this
        optimizer's parameters without being theirs (the discriminator in the generator's step).
        All ranks must run the same passes inside.
        """
        step = self._this_step
        before, step.reduces = step.reduces, False
        try:
            yield
        finally:
            step.reduces = before

    @outside_graphs
    def synchronize(self):
        """Waits until every gradient has been reduced; they are in ``p.grad`` then.

        A parameter whose gradient did not come (an unused layer, fewer backward passes) takes part
        with what it has, or zero, because other ranks may have a gradient for it.

        RuntimeError names gradients that the script has changed while they were being reduced.
        """
        if not self._this_step.settled:
            self._reduce_all()
        self._this_step.settled, self._this_step.synchronized = False, True

    def _settle(self):
        """`synchronize` for something that needs reduced gradients before ``step()``."""
        if not (self._this_step.synchronized or self._this_step.settled):
            self._reduce_all()
            self._this_step.settled = True

    def _settle_for_scaler(self):
        """GradScaler is about to look at gradients."""
        self._settle()

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """``torch.nn.utils.clip_grad_norm_`` of the reduced gradients of all parameters.

        Waits for them first; ``step()`` then uses them as they are. Returns their norm before
        clipping, a tensor that is the same on all ranks.
        """
        self._settle()
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)

    @outside_graphs
    def _reduce_all(self):
        shown = _ranges.enter("rueda:optimizer.synchronize")
        try:
            if self._is_guarded:
                points.repeat(self._reduce_once)
            else:
                self._reduce_once()
        finally:
            _ranges.leave(shown)

    def _reduce_once(self, vote=None):
        if self._lost:
            raise RuntimeError(
                "A later DistributedOptimizer was made for parameters of this one "
                f"({_some(self._lost)}). Use that one."
            )
        step, gone, at_rest = self._this_step, (), []
        _lent_memory.window.close()  # an exception may have ended backward
        try:
            self._plain.join()
            if self._has_peers and self._groups_changed():
                gone = self._look_at_groups()
            self._start_missing(step, at_rest)
            pending = step.pending
            if vote is not None:
                self.contributors = _guarded.results(pending, self._reduce_policy.replicas)
                vote()
            touched = self._end_reductions(pending)
        except BaseException as error:
            give_up(step.pending, _SETTLE_SECONDS if isinstance(error, Exception) else 0)
            raise
        finally:
            for p in at_rest:
                p.grad = None
            step.forget(self._gradient_of.values())
            for p in gone:
                self._leave(p)
        _refuse_touched(touched)

    def _end_reductions(self, reductions):
        """Puts their results into the parameters' ``grad``; returns gradients that the script has changed meanwhile."""
        return [gradient for reduction in reductions for gradient in reduction.end()]

    def _start_missing(self, step, at_rest):
        """Starts what no hook has started: every rank reduces every parameter that it trains.

        Parameters that get a gradient for their group's sake alone are put into ``at_rest``.
        """
        if step.has_discarded:  # and backward has not come again to some that were thrown away with those
            for reduction in step.pending[:]:
                if not reduction.is_wanted():
                    step.discard(reduction)
        gradients = self._gradient_of.values()
        self._reduce_policy.agree(gradients)
        for gradient in gradients:
            if gradient.reduction is None and not gradient.is_ready:
                p = gradient.parameter
                if not p.requires_grad and p.grad is None:  # frozen since, on all ranks
                    if gradient.group is None:
                        continue
                    at_rest.append(p)
                self._reduce_policy.supply(gradient)
                gradient.start()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """``step()`` inside does not synchronise: the script has called ``synchronize()``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure=None):
        """Waits for the averaged gradients, then steps. ``closure`` as in the wrapped optimizer.

        Gradients that a closure computes are reduced before it returns, and its loss is the
        reduced one then, so that an optimizer that looks at losses decides alike on all ranks.
        """
        if self._should_synchronize:
            if self._this_step.synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This reduces the gradients twice; call step() "
                    "within optimizer.skip_synchronize()."
                )
            if not self._this_step.settled:
                self._reduce_all()
            if closure is not None and self._has_peers:
                closure = functools.partial(self._evaluate, closure)
        shown = _begin_mark()
        try:
            result = super().step(closure) if closure is not None else super().step()
        finally:
            _end_mark(shown)
        self._end_step()
        return result

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    @outside_graphs
    def _end_step(self):
        self._this_step.synchronized = self._this_step.settled = False
        self._plain.note_step()
        self._steps += 1
        due = self._check_every is not None and self._steps % self._check_every == 0
        if due and self._has_peers:
            check_replicas(self._replicated(), self._reduce_settings.process_set)

    def _replicated(self):
        """What `check_replicas` compares."""
        return self

    def tensors_kept(self):
        """By what they are for, besides ``state``: for `memory_report`."""
        compression = self._reduce_settings.compression
        memory = compression.tensors_kept() if isinstance(compression, Reducer) else {}
        return {"parameters": [], "gradients": [], "state": memory}

    def _evaluate(self, closure):
        """Calls a closure; if it computed gradients on any rank, reduces them and the loss."""
        loss = closure()
        computed = any(gradient.has_computed() for gradient in self._gradient_of.values())
        value = float("nan") if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        report = torch.tensor([float(computed), value], dtype=torch.float64)
        op, process_set = self._reduce_settings.op, self._reduce_settings.process_set
        handle = _async.allreduce_async_(
            report,
            name=self._reduce_settings.prefix + "optimizer.closure",
            op=basics.Sum if op == basics.Sum else basics.Average,
            process_set=process_set,
        )
        computed, value = _async.synchronize(handle).tolist()
        if not computed:
            return loss
        self._reduce_all()
        if loss is None:
            return None
        return torch.full_like(loss.detach(), value) if isinstance(loss, torch.Tensor) else value

    def zero_grad(self, *args, **kwargs):
        """As in the wrapped optimizer; refused while gradients are being reduced."""
        if self._this_step.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition. If that loss was another optimizer's, run its backward within "
                "this optimizer's no_sync()."
            )
        self._this_step.forget(self._gradient_of.values())
        self._this_step.synchronized = self._this_step.settled = False
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """As in the wrapped optimizer; reductions under way are given up.

        ``param_groups``, each group and ``state`` stay the objects that they are, so that schedulers
        and the wrapped optimizer see what was loaded.
        """
        give_up(self._this_step.pending, 0)
        self._this_step.forget(self._gradient_of.values())
        self._this_step.synchronized = self._this_step.settled = False
        self._plain.join()
        with same_objects(self):
            return super().load_state_dict(*args, **kwargs)

    def add_param_group(self, group):
        """As in the wrapped optimizer; the new parameters are reduced too."""
        super().add_param_group(group)
        if self._has_peers:
            self._look_at_groups()

    def check_replicas(self, every):
        """From now on compares parameters and state of the ranks after each ``every`` steps.

        Raises `ReplicasDiffer` on all ranks, naming the first tensor and the rank that drifted.
        None ends it. All ranks must call it with the same number.
        """
        self._check_every = None if every is None else whole_number("check_replicas: every", every, 1)


def _refuse_touched(gradients):
    """RuntimeError names those that have been changed too early."""
    if gradients:
        names = [gradient.name for gradient in gradients]
        raise RuntimeError(
            f"Gradients were changed while they were being reduced ({_some(names)}), so the "
            "result is unusable. Call optimizer.synchronize() before changing gradients, or "
            "use optimizer.clip_grad_norm_(), which does."
        )


def _end(hooks, gradients, step):
    """Of an optimizer that nobody has any more: its parameters are free of it."""
    for remove in hooks.values():
        remove()
    runtime.reserve(-len(hooks))
    give_up(step.pending, 0)
    # What an interrupt kept the step from hearing of. Not left to finalisers: the garbage collector may run the
    # request's first.
    give_up((gradient.in_place for gradient in gradients.values() if gradient.in_place is not None), 0)


def _some(names, most=6):
    """Names for a message."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")
