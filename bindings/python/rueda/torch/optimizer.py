"""DistributedOptimizer: averages gradients over ranks while backward is still running.

A hook on every parameter starts an asynchronous allreduce of its gradient as soon as that is
complete; ``step()`` waits for all of them and then lets the wrapped optimizer step.

    backward:  grad of layer n ready -> allreduce n starts | grad of n-1 ready -> ... | ...
    step():    missing gradients count as zero -> wait for all -> wrapped step

Without compression a dense, contiguous gradient is reduced in place, with no copy. With one rank
there are no hooks and nothing is reduced.
"""

import contextlib
import time
import warnings

import torch

from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.common.process_sets import global_process_set, require_global
from rueda.common.util import split_list
from rueda.torch import _async
from rueda.torch._gradient_homes import GradientHomes
from rueda.torch._outside import outside_graphs
from rueda.torch.compression import Compression
from rueda.torch.functions import broadcast_object

# After one reduction failed, how long the others of the step may take to end: they fail or end
# within moments, unless a peer never submitted them.
_SETTLE_SECONDS = 5


class _Distributed:
    """What the class made by `DistributedOptimizer` has before the wrapped optimizer's class."""

    def _setup(self, names, compression, passes, op, predivide, groups, sparse_as_dense, homes):
        self._parameter_names = names
        self._compression = compression
        self._op = op
        self._prescale, self._postscale = 1.0 / predivide, predivide
        self._sparse_as_dense = sparse_as_dense
        self._homes = homes
        self._passes_per_step = passes
        self._passes_left = {}
        self._handles = {}  # parameter -> function that waits and writes its gradient
        self._group_of = {p: members for members in groups for p in members}
        self._group_ready = {}  # first member -> members whose gradients are complete
        self._hooks = []
        self._synchronized = False
        self._should_synchronize = True
        if basics.size() > 1:
            for group in self.param_groups:
                self._watch(group["params"])

    def _watch(self, parameters):
        for p in parameters:
            if p.requires_grad:
                self._passes_left[p] = self._passes_per_step
                self._hooks.append(_on_gradient_complete(p, self._gradient_complete))

    @outside_graphs
    def _gradient_complete(self, p):
        if self._passes_left[p] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._passes_left[p] -= 1
        if self._passes_left[p] == 0:
            self._start(p)

    def _start(self, p):
        """Starts the reduction of one gradient, or notes it until its group is complete."""
        members = self._group_of.get(p)
        if members is None:
            self._handles[p] = self._reduce([p], self._parameter_names[p])
            return
        ready = self._group_ready.setdefault(members[0], set())
        ready.add(p)
        if len(ready) == len(members):
            del self._group_ready[members[0]]
            finish = self._reduce(members, "group." + self._parameter_names[members[0]])
            for member in members:
                self._handles[member] = finish

    def _reduce(self, parameters, name):
        """Starts the reduction of gradients; returns how to wait for it and write the result."""
        if len(parameters) == 1 and parameters[0].grad.is_sparse and not self._sparse_as_dense:
            return self._reduce_sparse(parameters[0], name)
        wires, contexts = [], []
        for p in parameters:
            if self._homes is not None:
                self._homes.bring(p)
            grad = p.grad.detach()
            wire, context = self._compression.compress(grad.to_dense() if grad.is_sparse else grad)
            wires.append(wire.contiguous())
            contexts.append(context)
        arguments = (None, name, self._op, self._prescale, self._postscale)
        if len(parameters) == 1:
            handle = _async.allreduce_async_(wires[0], *arguments)
        else:
            handle = _async.grouped_allreduce_async_(wires, *arguments)

        def finish():
            _async.synchronize(handle)
            for p, wire, context in zip(parameters, wires, contexts):
                result = self._compression.decompress(wire, context)
                if p.grad.is_sparse:
                    p.grad = result.to_sparse(p.grad.sparse_dim())
                elif result.data_ptr() != p.grad.data_ptr():
                    with torch.no_grad():
                        p.grad.copy_(result)

        finish.handles = [handle]
        return finish

    def _reduce_sparse(self, p, name):
        result = _async.sparse_allreduce_async(p.grad.detach(), name, self._op)

        def finish():
            p.grad = result()

        finish.handles = result.handles
        return finish

    def set_backward_passes_per_step(self, passes):
        """Number of backward passes whose gradients are summed before they are reduced."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes_per_step = passes
        for p in self._passes_left:
            self._passes_left[p] = passes

    @outside_graphs
    def synchronize(self):
        """Waits until every gradient has been reduced; they are in ``p.grad`` then.

        A parameter whose gradient did not come (an unused layer, fewer backward passes) takes part
        with what it has, or zero, because other ranks may have a gradient for it.
        """
        for p in self._passes_left:
            if p not in self._handles and p not in self._group_ready.get(self._first(p), ()):
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self._start(p)
        pending = list(dict.fromkeys(self._handles.values()))
        try:
            for finish in pending:
                finish()
        except BaseException as error:
            _give_up(pending, _SETTLE_SECONDS if isinstance(error, Exception) else 0)
            raise
        finally:
            self._forget()
        self._synchronized = True

    def _first(self, p):
        return self._group_of[p][0] if p in self._group_of else None

    def _forget(self):
        self._handles.clear()
        self._group_ready.clear()
        for p in self._passes_left:
            self._passes_left[p] = self._passes_per_step

    @contextlib.contextmanager
    def skip_synchronize(self):
        """``step()`` inside does not synchronise: for scripts that have called ``synchronize()``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure=None):
        """Waits for the averaged gradients, then steps. ``closure`` as in the wrapped optimizer."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This reduces the gradients twice; call step() "
                    "within optimizer.skip_synchronize()."
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure) if closure is not None else super().step()

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    def zero_grad(self, *args, **kwargs):
        """As in the wrapped optimizer; refused while gradients are being reduced."""
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """As in the wrapped optimizer; reductions under way are given up."""
        _give_up(dict.fromkeys(self._handles.values()), 0)
        self._forget()
        self._synchronized = False
        return super().load_state_dict(*args, **kwargs)

    def add_param_group(self, group):
        """As in the wrapped optimizer; the new parameters are reduced too."""
        super().add_param_group(group)
        number = len(self.param_groups) - 1
        added = self.param_groups[number]["params"]
        for index, p in enumerate(added):
            self._parameter_names[p] = f"allreduce.noname.{number}.{index}"
        if basics.size() > 1:
            self._watch(added)


def _give_up(pending, seconds):
    """Abandons reductions, after a chance to end: a next attempt needs their names."""
    end = time.monotonic() + seconds
    for handle in [handle for finish in pending for handle in finish.handles]:
        try:
            _async.synchronize(handle, max(0.0, end - time.monotonic()))
        except (HorovodInternalError, DeadlineExceeded):
            runtime.abandon(handle)


def _on_gradient_complete(p, call):
    """Calls ``call(p)`` each time backward has finished ``p.grad``; returns what keeps that up."""
    if hasattr(p, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
        return p.register_post_accumulate_grad_hook(call)
    # The node that accumulates into p.grad lives as long as somebody holds it.
    accumulate = p.expand_as(p).grad_fn.next_functions[0][0]
    accumulate.register_hook(lambda *ignored: call(p))
    return accumulate


def _name_parameters(optimizer, named_parameters):
    """parameter -> name, complete and unique, or ValueError."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return {
            p: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(groups)
            for j, p in enumerate(group)
        }
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(map(str, duplicates))
        )
    by_parameter = {p: name for name, p in pairs}
    unnamed = sum(1 for group in groups for p in group if p not in by_parameter)
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named "
            f"({unnamed} of the optimizer's parameters)."
        )
    return by_parameter


def _make_groups(groups, num_groups, names, optimizer):
    """Lists of parameters that are reduced as one; parameters in none are reduced alone."""
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return []
    if isinstance(groups, list):
        flat = [p for members in groups for p in members]
        if not all(isinstance(p, torch.Tensor) for p in flat):
            raise ValueError("groups must be a list of lists of parameters")
        if len(flat) != len(set(flat)):
            raise ValueError("groups must name each parameter at most once")
        if not all(p in names for p in flat):
            raise ValueError("groups must consist of the optimizer's parameters")
        chosen = groups
    elif isinstance(groups, int) and groups > 0:
        # Rank 0's order counts, so that all ranks cut the same groups.
        own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        order = broadcast_object([names[p] for p in own], 0, "optimizer_groups")
        by_name = {names[p]: p for p in own}
        chosen = split_list([by_name[name] for name in order], groups)
    else:
        raise ValueError("groups should be a list of lists of parameters, or a number > 0")
    trained = [[p for p in members if p.requires_grad] for members in chosen]
    return [members for members in trained if members]


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
        One of `Compression`: what gradients travel as.
    backward_passes_per_step : int
        Gradients of that many backward passes are summed locally before they are reduced.
    op : int
        Average or Sum (also Min, Max, Product).
    gradient_predivide_factor : float
        f: gradients are divided by f before the sum and multiplied by f / size after it.
    num_groups : int
        Deprecated form of ``groups``.
    groups : int or list of lists of parameters, optional
        Which gradients are reduced as one: a number of equal groups, or explicit groups.
    sparse_as_dense : bool
        Reduce sparse gradients as dense ones instead of gathering indices and values.
    gradients_in_arena : bool
        Keep dense gradients in memory that the ranks of a host share (docs/memory.md). ``p.grad``
        is another tensor after the reduction starts than before it. Without effect under
        compression.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class.
    """
    if basics.Adasum == op:
        raise NotImplementedError("op=Adasum is not available in this version of rueda")
    if gradient_predivide_factor != 1.0 and op != basics.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    require_global(process_set)
    names = _name_parameters(optimizer, named_parameters)
    chosen = _make_groups(groups, num_groups, names, optimizer)
    wrapped = type(optimizer)
    distributed = type(wrapped.__name__, (_Distributed, wrapped), {})
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
        GradientHomes() if gradients_in_arena and compression is Compression.none else None,
    )
    return result
