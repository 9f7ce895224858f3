"""DistributedOptimizer: averages gradients over ranks while backward is still running.

A hook on every parameter starts an asynchronous allreduce of its gradient as soon as that is
complete; ``step()`` waits for all of them and then lets the wrapped optimizer step.

    backward:  grad of layer n ready -> allreduce n starts | grad of n-1 ready -> ... | ...
    step():    missing gradients count as zero -> wait for all -> wrapped step

Without compression a dense, contiguous gradient is reduced in place, with no copy. With one rank
there are no hooks and nothing is reduced.
"""

import contextlib
import functools
import sys
import warnings
import weakref

import torch

from rueda import _marks
from rueda.common import basics
from rueda.common.process_sets import global_process_set, require_registered
from rueda.torch import _async, _owners
from rueda.torch._compress_reducer import Reducer, reducer_for_optimizer
from rueda.torch._gradient_buffers import GradientBuffers
from rueda.torch._layouts import Layouts, empty_sparse_gradient
from rueda.torch._outside import outside_graphs
from rueda.torch._parameters import make_groups, name_parameters
from rueda.torch._reduction import ChainReduction, Reduction, give_up
from rueda.torch._straight import StraightReduction
from rueda.torch.compression import Compression
from rueda.torch.replicas import check_replicas

# After one reduction failed, how long the others of the step may take to end: they fail or end
# within moments, unless a peer never submitted them.
_SETTLE_SECONDS = 5

_begin_mark = outside_graphs(_marks.begin_step)
_end_mark = outside_graphs(_marks.end_step)


class _Distributed:
    """What the class made by `DistributedOptimizer` has before the wrapped optimizer's class."""

    def _setup(
        self, names, compression, passes, op, predivide, groups, sparse_as_dense, homes, process_set
    ):
        self._parameter_names = names
        self._process_set = process_set
        # Who is no member, or the only one, uses its own gradients.
        self._has_peers = process_set.included() and process_set.size() > 1
        self._prefix = _owners.prefix(names.values())
        self._compression = compression
        self._op = op
        self._prescale, self._postscale = 1.0 / predivide, predivide
        self._sparse_as_dense = sparse_as_dense
        self._layouts = None if sparse_as_dense else Layouts()
        self._homes = homes
        self._straight = {}  # parameter -> its StraightReduction
        self._passes_per_step = passes
        self._passes_left = {}
        self._accumulated = {}  # parameter -> weak reference to its gradient of several passes
        self._pending = {}  # parameter -> its Reduction
        self._group_of = {p: members for members in groups for p in members}
        self._group_ready = {}  # first member -> members whose gradients are complete
        self._hooks = {}  # parameter -> function that removes its hook
        self._lost = []  # names of parameters that a later optimizer owns
        self._reduces = True  # False within no_sync()
        # How the gradients came to be reduced: by synchronize(), or because something needed them
        # reduced before step(), which then does not warn.
        self._synchronized = False
        self._settled = False
        self._should_synchronize = True
        self._check_every, self._steps = None, 0
        if self._has_peers:
            for group in self.param_groups:
                self._watch(group["params"])

    def _watch(self, parameters):
        for p in parameters:
            if p.requires_grad:
                before = _owners.own(p, self)
                if before is not None and before is not self:
                    before._lose(p)
                self._passes_left[p] = self._passes_per_step
                self._hooks[p] = _on_gradient_complete(p, self._gradient_complete)

    def _lose(self, p):
        """A later optimizer has been made for the parameter."""
        self._hooks.pop(p)()
        self._lost.append(self._parameter_names[p])

    @property
    def param_groups(self):
        # GradScaler reads gradients through this attribute, and says so in no other way.
        if not (self._synchronized or self._settled) and self._should_synchronize:
            if sys._getframe(1).f_code.co_name == "_unscale_grads_":
                self._settle()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups

    @outside_graphs
    def _gradient_complete(self, p):
        if _marks.on:
            _marks.gradient(torch.autograd.Variable._execution_engine)
        reduction = self._pending.get(p)
        if reduction is not None:
            # With create_graph the sum of old and new is a new tensor, so it tells nothing.
            if reduction.is_wanted() or torch.is_grad_enabled():
                raise AssertionError(_TOO_OFTEN)
            self._discard(reduction)
        self._synchronized = self._settled = False
        if not self._reduces:
            return
        before = self._accumulated.pop(p, None)
        if before is not None and before() is not p.grad:
            self._passes_left[p] = self._passes_per_step  # the script has begun anew
        if self._passes_left[p] <= 0:
            raise AssertionError(_TOO_OFTEN)
        self._passes_left[p] -= 1
        if self._passes_left[p] == 0:
            self._start(p)
        else:
            self._accumulated[p] = weakref.ref(p.grad)

    def _discard(self, reduction):
        """Forgets a reduction whose gradients the script has thrown away; peers do the same."""
        reduction.wait()
        reduction.let_go()
        for member in reduction.parameters:
            del self._pending[member]
            self._passes_left[member] = self._passes_per_step

    def _start(self, p):
        """Starts the reduction of one gradient, or notes it until its group is complete."""
        members = self._group_of.get(p)
        if members is None:
            self._pending[p] = self._reduce([p], self._parameter_names[p])
            return
        ready = self._group_ready.setdefault(members[0], set())
        ready.add(p)
        if len(ready) == len(members):
            del self._group_ready[members[0]]
            reduction = self._reduce(members, "group." + self._parameter_names[members[0]])
            for member in members:
                self._pending[member] = reduction

    def _reduce(self, parameters, name):
        """Starts the reduction of gradients."""
        if len(parameters) == 1 and self._compression is Compression.none:
            straight = self._straight.get(parameters[0])
            if straight is not None and straight.start():
                return straight
        name = self._prefix + name
        if len(parameters) == 1 and parameters[0].grad.is_sparse and not self._sparse_as_dense:
            return self._reduce_sparse(parameters[0], name)
        if isinstance(self._compression, Reducer):
            return self._reduce_compressed(parameters[0], name)
        wires, contexts = [], []
        for p in parameters:
            if self._homes is not None:
                self._homes.bring(p)
            grad = p.grad.detach()
            wire, context = self._compression.compress(grad.to_dense() if grad.is_sparse else grad)
            wires.append(wire.contiguous())
            contexts.append(context)
        scales = self._prescale, self._postscale
        arguments = (None, name, self._op, *scales, self._process_set)
        if len(parameters) == 1:
            handle = _async.allreduce_async_(wires[0], *arguments)
            if self._compression is Compression.none and p not in self._straight:
                self._straight[p] = StraightReduction(
                    p, name, self._op, *scales, self._process_set, self._homes
                )
        else:
            handle = _async.grouped_allreduce_async_(wires, *arguments)

        def write(_):
            for p, wire, context in zip(parameters, wires, contexts):
                _write_gradient(p, self._compression.decompress(wire, context))

        return Reduction(parameters, [handle], write)

    def _reduce_compressed(self, p, name):
        grad = p.grad.detach()
        chain = self._compression.start(
            grad.to_dense() if grad.is_sparse else grad,
            name,
            self._op,
            self._prescale,
            self._postscale,
            self._process_set,
        )
        return ChainReduction([p], chain, lambda result: _write_gradient(p, result))

    def _reduce_sparse(self, p, name):
        result = _async.sparse_allreduce_async(p.grad.detach(), name, self._op, self._process_set)

        def write(indices, values):
            p.grad = result.combine(indices, values)

        return Reduction([p], result.handles, write)

    def set_backward_passes_per_step(self, passes):
        """Number of backward passes whose gradients are summed before they are reduced."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes_per_step = passes
        for p in self._passes_left:
            self._passes_left[p] = passes

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of backward passes inside stay on this rank.

        They add up in ``p.grad`` and are reduced with those of the next backward pass outside. For
        accumulation over a varying number of passes, and for a loss that passes through this
        optimizer's parameters without being theirs (the discriminator in the generator's step).
        All ranks must run the same passes inside.
        """
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    @outside_graphs
    def synchronize(self):
        """Waits until every gradient has been reduced; they are in ``p.grad`` then.

        A parameter whose gradient did not come (an unused layer, fewer backward passes) takes part
        with what it has, or zero, because other ranks may have a gradient for it.

        RuntimeError names gradients that the script has changed while they were being reduced.
        """
        if not self._settled:
            self._reduce_all()
        self._settled, self._synchronized = False, True

    def _settle(self):
        """`synchronize` for something that needs reduced gradients before ``step()``."""
        if not (self._synchronized or self._settled):
            self._reduce_all()
            self._settled = True

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
        if self._lost:
            raise RuntimeError(
                "A later DistributedOptimizer was made for parameters of this one "
                f"({_some(self._lost)}). Use that one."
            )
        try:
            self._start_missing()
            touched = []
            for reduction in dict.fromkeys(self._pending.values()):
                reduction.wait()
                touched += [self._parameter_names[p] for p in reduction.touched()]
                if not touched:
                    reduction.write()
        except BaseException as error:
            pending = dict.fromkeys(self._pending.values())
            give_up(pending, _SETTLE_SECONDS if isinstance(error, Exception) else 0)
            raise
        finally:
            self._forget()
        if touched:
            raise RuntimeError(
                f"Gradients were changed while they were being reduced ({_some(touched)}), so the "
                "result is unusable. Call optimizer.synchronize() before changing gradients, or "
                "use optimizer.clip_grad_norm_(), which does."
            )

    def _start_missing(self):
        """Starts what no hook has started: every rank reduces every parameter."""
        for reduction in list(dict.fromkeys(self._pending.values())):
            if not reduction.is_wanted():
                self._discard(reduction)
        if self._layouts is not None:
            if len(self._layouts) < len(self._passes_left) - len(self._group_of):
                alone = [p for p in self._passes_left if p not in self._group_of]
                self._layouts.agree(
                    alone, self._parameter_names, self._prefix, self._process_set
                )
        for p in self._passes_left:
            if p not in self._pending and p not in self._group_ready.get(self._first(p), ()):
                self._supply_gradient(p)
                self._start(p)

    def _supply_gradient(self, p):
        if p.grad is None:
            is_sparse = self._layouts is not None and self._layouts.is_sparse(p)
            p.grad = empty_sparse_gradient(p) if is_sparse else torch.zeros_like(p)

    def _first(self, p):
        return self._group_of[p][0] if p in self._group_of else None

    def _forget(self):
        for reduction in dict.fromkeys(self._pending.values()):
            reduction.let_go()
        self._pending.clear()
        self._group_ready.clear()
        self._accumulated.clear()
        for p in self._passes_left:
            self._passes_left[p] = self._passes_per_step

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
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This reduces the gradients twice; call step() "
                    "within optimizer.skip_synchronize()."
                )
            if not self._settled:
                self._reduce_all()
            if closure is not None and self._has_peers:
                closure = functools.partial(self._evaluate, closure)
        _begin_mark()
        try:
            result = super().step(closure) if closure is not None else super().step()
        finally:
            _end_mark()
        self._end_step()
        return result

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    @outside_graphs
    def _end_step(self):
        self._synchronized = self._settled = False
        self._steps += 1
        due = self._check_every is not None and self._steps % self._check_every == 0
        if due and self._has_peers:
            check_replicas(self._replicated(), self._process_set)

    def _replicated(self):
        """What `check_replicas` compares."""
        return self

    def _evaluate(self, closure):
        """Calls a closure; if it computed gradients on any rank, reduces them and the loss."""
        loss = closure()
        computed = bool(self._pending or self._group_ready or self._accumulated)
        value = float("nan") if loss is None else float(loss)
        report = torch.tensor([float(computed), value], dtype=torch.float64)
        op = basics.Sum if self._op == basics.Sum else basics.Average
        name = self._prefix + "optimizer.closure"
        handle = _async.allreduce_async_(report, name=name, op=op, process_set=self._process_set)
        computed, value = _async.synchronize(handle).tolist()
        if not computed:
            return loss
        self._reduce_all()
        if loss is None:
            return None
        return torch.full_like(loss.detach(), value) if isinstance(loss, torch.Tensor) else value

    def zero_grad(self, *args, **kwargs):
        """As in the wrapped optimizer; refused while gradients are being reduced."""
        if self._pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition. If that loss was another optimizer's, run its backward within "
                "this optimizer's no_sync()."
            )
        self._forget()
        self._synchronized = self._settled = False
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """As in the wrapped optimizer; reductions under way are given up."""
        give_up(dict.fromkeys(self._pending.values()), 0)
        self._forget()
        self._synchronized = self._settled = False
        return super().load_state_dict(*args, **kwargs)

    def add_param_group(self, group):
        """As in the wrapped optimizer; the new parameters are reduced too."""
        super().add_param_group(group)
        number = len(self.param_groups) - 1
        added = self.param_groups[number]["params"]
        for index, p in enumerate(added):
            self._parameter_names[p] = f"allreduce.noname.{number}.{index}"
        if self._has_peers:
            self._watch(added)

    def check_replicas(self, every):
        """From now on compares parameters and state of the ranks after each ``every`` steps.

        Raises `ReplicasDiffer` on all ranks, naming the first tensor and the rank that drifted.
        None ends it. All ranks must call it with the same number.
        """
        if every is not None and (not isinstance(every, int) or every <= 0):
            raise ValueError(f"check_replicas: every={every!r} must be a number of steps > 0")
        self._check_every = every


_TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before call to "
    "step(). Increase backward_passes_per_step to accumulate gradients locally."
)


def _write_gradient(p, result):
    if p.grad.is_sparse:
        p.grad = result.to_sparse(p.grad.sparse_dim())
    elif result.data_ptr() != p.grad.data_ptr():
        with torch.no_grad():
            p.grad.copy_(result)


def _some(names, most=6):
    """Names for a message."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def _on_gradient_complete(p, call):
    """Calls ``call(p)`` each time backward has finished ``p.grad``; returns what ends that."""
    if hasattr(p, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
        return p.register_post_accumulate_grad_hook(call).remove
    # The node that accumulates into p.grad lives as long as somebody holds it.
    accumulate = p.expand_as(p).grad_fn.next_functions[0][0]
    hook = accumulate.register_hook(lambda *ignored: call(p))

    def remove(_held=accumulate):
        hook.remove()

    return remove


def _kind_for(op, gradients_in_arena, process_set):
    """The class that reduces gradients or, for Adasum on several ranks, steps."""
    if op != basics.Adasum or not process_set.included() or process_set.size() == 1:
        return _Distributed
    if gradients_in_arena:
        raise ValueError("gradients_in_arena is not for op=Adasum: gradients are not reduced there")
    from rueda.torch._adasum_optimizer import _DistributedDelta

    return _DistributedDelta


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step=1,
    op=basics.Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    sparse_as_dense=False,
    process_set=global_process_set,
    gradients_in_arena=False,
):
    """Wraps an optimizer so that ``step()`` uses gradients reduced over all ranks.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its parameters, options and state are shared with the result; use only the result.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        ``model.named_parameters()``; all of the optimizer's, each name once.
    compression
        One of `Compression`: what gradients travel as. An instance with a memory (``topk(0.01)``)
        belongs to one optimizer; it has ``state_dict`` and ``load_state_dict`` of its own.
    backward_passes_per_step : int
        Gradients of that many backward passes are summed locally before they are reduced.
    op : int
        Average or Sum (also Min, Max, Product). Adasum combines the ranks' steps, not their
        gradients (`rueda.torch._adasum_optimizer`): the wrapped optimizer steps each parameter with
        this rank's gradient, and ``step()`` adds the Adasum of what that changed.
    gradient_predivide_factor : float
        f: gradients are divided by f before the sum and multiplied by f / size after it.
    num_groups : int
        Deprecated form of ``groups``.
    groups : int or list of lists of parameters, optional
        Which gradients are reduced as one: a number of equal groups, or explicit groups.
    sparse_as_dense : bool
        Reduce sparse gradients as dense ones instead of gathering indices and values.
    process_set : ProcessSet
        The ranks whose gradients are reduced; the others step with their own.
    gradients_in_arena : bool
        Keep dense gradients in memory that the ranks of a host share (docs/memory.md). ``p.grad``
        is another tensor after the reduction starts than before it. Without effect under
        compression; not with Adasum.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class.
    """
    if gradient_predivide_factor != 1.0 and op != basics.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    require_registered(process_set)
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap the plain one")
    names = name_parameters(optimizer, named_parameters)
    chosen = make_groups(groups, num_groups, names, optimizer)
    compression = reducer_for_optimizer(compression, op, chosen)
    wrapped = type(optimizer)
    kind = _kind_for(op, gradients_in_arena, process_set)
    distributed = type(wrapped.__name__, (kind, wrapped), {})
    result = distributed.__new__(distributed)
    # A learning-rate scheduler made before may have put its own step on the instance.
    result.__dict__.update((k, v) for k, v in vars(optimizer).items() if k != "step")
    result._setup(
        names,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        chosen,
        sparse_as_dense,
        GradientBuffers() if gradients_in_arena and compression is Compression.none else None,
        process_set,
    )
    return result
