"""Stale-synchronous updates: a step uses the gradients of an earlier one, while its own are being reduced.

    staleness 2    step 5: backward -> reduction 5 starts | wait for reduction 3 -> the wrapped step with its sums
                   step 6: backward -> reduction 6 starts | wait for reduction 4 -> ...

A rank can thus be ``staleness`` steps ahead of the slowest one before it waits. All ranks apply the same sums in the
same order, with the options (learning rate, ...) of the step in which they were computed: so parameters are equal, bit
by bit, wherever two ranks have applied equally many.

Sources: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (2013), for the
bound; Barkai et al., Li et al. ("Pipe-SGD", 2018) for pipelined sums in the place of a server.
"""

import collections
import weakref

import torch

from rueda._ffi import AVERAGE
from rueda._numbers import whole_number
from rueda.common.process_sets import global_process_set
from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer, reducer_for_optimizer
from rueda.torch._distributed import _SETTLE_SECONDS, _begin_mark, _Distributed, _end_mark, _refuse_touched
from rueda.torch._outside import outside_graphs
from rueda.torch._policies import Compressed, Dense, Policy
from rueda.torch._reduction import give_up
from rueda.torch.compression import Compression
from rueda.torch.relaxed._relaxed import Relaxed, wrap


def AsyncOptimizer(
    optimizer,
    named_parameters=None,
    staleness=1,
    eager=False,
    compression=Compression.none,
    backward_passes_per_step=1,
    process_set=global_process_set,
):
    """Wraps an optimizer so that a step need not wait for the gradients that were just computed.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its parameters, options and state are shared with the result. Only the result may step.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        ``model.named_parameters()``; all of the optimizer's, each name once.
    staleness : int
        s: by how many steps reduced gradients may be late. 0 is `DistributedOptimizer`, bit by bit.
    eager : bool
        False: each step uses the sums of exactly s steps ago, whatever the timing; results are reproducible, and after
        each step all ranks have equal parameters. True: each step uses all sums that have arrived, and waits only
        for those that are s steps late: less stale, but what a rank computes gradients with depends on timing.
    compression
        Of gradients, as in `DistributedOptimizer`.
    backward_passes_per_step : int
        As in `DistributedOptimizer`.
    process_set : ProcessSet
        The ranks whose gradients are reduced. Who is alone, or no member, steps with its own, which are not late.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class. Besides: ``finish()`` applies what
    is under way, and ``staleness_seen`` counts by how many steps gradients were late.
    """
    staleness = whole_number("staleness", staleness, 0)
    compression = reducer_for_optimizer(compression, AVERAGE, [])
    if eager and isinstance(compression, Reducer):
        raise ValueError(f"eager=True is not for compression {compression.kind}, which goes on only while somebody waits")
    options = {"staleness": staleness, "eager": eager}
    return wrap(
        _AsyncOptimizer, optimizer, named_parameters, process_set, backward_passes_per_step, options, compression
    )


class _Late:
    """The gradients of one step, which are, or will be, the means of all ranks'."""

    def __init__(self, step, gradients, options, reductions=()):
        self.step, self.options = step, options
        self.gradients = gradients  # (parameter, its gradient)
        self.reductions = list(reductions)

    def has_arrived(self):
        return all([_async.poll(handle) for each in self.reductions for handle in each.handles])

    def bring(self):
        """Waits, and puts them into the parameters' ``grad``; returns those that the script has changed."""
        for p, grad in self.gradients:
            p.grad = grad
        touched = []
        while self.reductions:
            touched += self.reductions[0].end()
            del self.reductions[0]
        self.gradients = [(p, p.grad) for p, _ in self.gradients]
        return touched


class _InTurns(Policy):
    """Every step has names of its own, of which there are as many as steps are under way."""

    def __init__(self, settings, turns):
        super().__init__(settings)
        kind = Compressed if isinstance(settings.compression, Reducer) else Dense
        self._policies = [kind(settings._replace(prefix=f"{settings.prefix}late{turn}.")) for turn in range(turns)]
        self.turn = 0

    def start(self, gradients, name):
        reduction = self._policies[self.turn].start(gradients, name)
        for gradient in gradients:
            gradient.in_place = None  # it would be of this turn's name
        return reduction

    def go_on(self):
        self.turn = (self.turn + 1) % len(self._policies)


class _AsyncOptimizer(Relaxed):
    _kind = "AsyncOptimizer"
    _reduces_in_steps = True

    def _configure(self, staleness, eager):
        self._staleness, self._eager = staleness, eager
        self._gradients_at_once = staleness + 1
        self.staleness_seen = collections.Counter()
        self._late = collections.deque()  # from the oldest
        self._placed = None  # the one whose gradients are the parameters', for the step to come
        self._changed_by_steps = set()  # options that the wrapped optimizer itself changes
        end = weakref.finalize(self, _give_up, self._late, 0)
        end.atexit = False

    def _make_policy(self, settings, sparse_as_dense):
        if self._staleness == 0:
            return super()._make_policy(settings, sparse_as_dense)
        return _InTurns(settings, self._staleness + 1)

    def _is_late(self):
        return self._staleness > 0 and self._has_peers

    # ---- what a step does ----

    def _end_reductions(self, reductions):
        if not self._is_late():
            return super()._end_reductions(reductions)
        watched = [gradient.parameter for gradient in self._gradient_of.values()]
        gradients = [(p, p.grad) for p in watched if p.grad is not None]
        for p, _ in gradients:
            p.grad = None
        self._late.append(_Late(self._steps, gradients, self._options(), reductions))
        self._reduce_policy.go_on()
        touched = []
        try:
            while self._late and self._is_due(self._late[0]):
                self._apply()
                touched += self._place(self._steps)
        except BaseException as error:
            _give_up(self._late, _SETTLE_SECONDS if isinstance(error, Exception) else 0)
            raise
        return touched

    def _is_due(self, late):
        return len(self._late) > self._staleness or (self._eager and late.has_arrived())

    def _place(self, now):
        """Of the oldest."""
        late = self._late[0]
        touched = late.bring()
        self._placed = self._late.popleft()
        self.staleness_seen[now - late.step] += 1
        return touched

    def _apply(self):
        """The wrapped optimizer's step with what is placed, and with the options that it was computed under."""
        placed, self._placed = self._placed, None
        if placed is None:
            return
        groups, now = self.__dict__["param_groups"], self._options()
        for group, options in zip(groups, placed.options):
            group.update({key: value for key, value in options.items() if key not in self._changed_by_steps})
        before = self._options(copied=False)
        shown = _begin_mark()
        try:
            super(_Distributed, self).step()
        finally:
            _end_mark(shown)
            for group, was, options in zip(groups, before, now):
                self._changed_by_steps |= {key for key, value in was.items() if group[key] is not value}
                group.update({key: value for key, value in options.items() if key not in self._changed_by_steps})

    def _options(self, copied=True):
        """Of all groups. Schedulers may change tensors in place, so those are copied."""
        return [
            {
                key: value.clone() if copied and isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in self.__dict__["param_groups"]
        ]

    def step(self, closure=None):
        """Starts what backward did not, and steps with the gradients that are due. No closure, unless ``staleness`` is 0."""
        if not self._is_late():
            loss = super().step(closure)
            self.staleness_seen[0] += 1
            return loss
        if closure is not None:
            raise NotImplementedError(
                "hvd.AsyncOptimizer takes no closure where staleness > 0: its gradients would be of another step"
            )
        if self._should_synchronize and not self._this_step.settled:
            self._reduce_all()
        self._apply()
        self._end_step()

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    def zero_grad(self, *args, **kwargs):
        """As in the wrapped optimizer; what is under way goes on."""
        super().zero_grad(*args, **kwargs)
        self._placed = None

    def finish(self):
        if self._this_step.pending or self._this_step.is_partial:
            raise RuntimeError("finish() between backward() and step(): take the step first")
        try:
            while self._late:
                _refuse_touched(self._place(self._steps - 1))
                self._apply()
        except BaseException as error:
            _give_up(self._late, _SETTLE_SECONDS if isinstance(error, Exception) else 0)
            raise

    # ---- what does not go with it ----

    def _settle_for_scaler(self):
        if self._is_late():
            raise NotImplementedError(
                "hvd.AsyncOptimizer: GradScaler has another scale when late gradients come than when they were computed; "
                "use bfloat16, or staleness=0"
            )
        super()._settle_for_scaler()

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """Of the gradients that ``step()`` will use; in the first steps there are none. Not with ``eager``."""
        if self._is_late() and self._eager:
            raise NotImplementedError(
                "hvd.AsyncOptimizer(eager=True): a step may use the gradients of several, which are not clipped as one"
            )
        return super().clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)

    def check_replicas(self, every):
        """As of a `DistributedOptimizer`; not with ``eager``, where ranks differ between two calls of ``finish()``."""
        if self._eager and self._staleness:
            raise ValueError(f"check_replicas(every={every!r}): ranks of hvd.AsyncOptimizer(eager=True) differ until finish()")
        super().check_replicas(every)

    # ---- checkpoints ----

    def _own_state(self):
        """Waits for what is under way, which a step would do later.

        With a `Reducer` all ranks must: its collectives follow each other, and a rank that does not wait lacks in them.
        """
        numbers = {p: number for number, (_, p) in enumerate(self._all_parameters())}
        before = [(p, p.grad) for p in numbers]
        try:
            for late in self._late:
                _refuse_touched(late.bring())
        finally:
            for p, grad in before:
                p.grad = grad
        return {
            "steps": self._steps,
            "staleness_seen": dict(self.staleness_seen),
            "late": [
                {
                    "step": late.step,
                    "options": late.options,
                    "gradients": {numbers[p]: grad.clone() for p, grad in late.gradients if p in numbers},
                }
                for late in self._late
            ],
        }

    def _check_own_state(self, state):
        if len(state["late"]) > self._staleness:
            raise ValueError(
                f"this is the state of hvd.AsyncOptimizer with staleness={len(state['late'])}, not {self._staleness}"
            )

    def _take_own_state(self, state):
        """Gradients under way are given up."""
        _give_up(self._late, _SETTLE_SECONDS)
        self._placed = None
        self._steps = 0 if state is None else state["steps"]
        self.staleness_seen = collections.Counter({} if state is None else state["staleness_seen"])
        parameters = [p for _, p in self._all_parameters()]
        for late in () if state is None else state["late"]:
            gradients = [(parameters[number], grad.clone()) for number, grad in late["gradients"].items()]
            self._late.append(_Late(late["step"], gradients, late["options"]))


def _give_up(late, seconds):
    """Of an optimizer that has failed, or that nobody has any more."""
    reductions = [reduction for each in late for reduction in each.reductions]
    late.clear()
    give_up(reductions, seconds)
