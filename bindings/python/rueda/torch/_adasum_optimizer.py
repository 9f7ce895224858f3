"""DistributedOptimizer(op=Adasum): the ranks' steps are combined, not their gradients.

When a gradient is complete, the wrapped optimizer steps that parameter alone, with this rank's
gradient; the difference that makes goes into an Adasum; ``step()`` adds the result:

    backward:  grad of p ready -> delta = wrapped step of p -> p back to its old value -> Adasum
    step():    p += adasum(deltas of all ranks)

So momentum and the like are each rank's own, from its own gradients. The learning rate needs no
scaling by the number of ranks.
"""

import contextlib
import weakref

import torch

from rueda.torch import _async
from rueda.torch._distributed import _Distributed
from rueda.torch._outside import outside_graphs
from rueda.torch._policies import Policy
from rueda.torch._reduction import Reduction


class Deltas(Policy):
    """What the wrapped optimizer's step makes of a gradient is what travels."""

    def __init__(self, settings, optimizer):
        super().__init__(settings)
        self._optimizer = weakref.ref(optimizer)

    def start(self, gradients, name):
        settings, deltas, contexts = self.settings, [], []
        for gradient in gradients:
            delta = self._optimizer()._delta(gradient.parameter)
            delta, context = settings.compression.compress(delta)
            deltas.append(delta.contiguous())
            contexts.append(context)
        name = settings.prefix + name
        arguments = None, name, settings.op, 1.0, 1.0, settings.process_set
        if len(gradients) == 1:
            handle = _async.allreduce_async_(deltas[0], *arguments)
        else:
            handle = _async.grouped_allreduce_async_(deltas, *arguments)

        def write(_):
            with torch.no_grad():
                for gradient, delta, context in zip(gradients, deltas, contexts):
                    gradient.parameter.add_(settings.compression.decompress(delta, context))

        return Reduction(gradients, [handle], write, watched=False)

    def supply(self, gradient):
        """A parameter without gradient does not move, and the wrapped optimizer leaves it alone."""


class _DistributedDelta(_Distributed):
    _sends_gradients = False

    def _make_policy(self, settings, sparse_as_dense):
        return Deltas(settings, self)

    def _look_at_groups(self):
        gone = super()._look_at_groups()
        self._group_number = {
            p: number for number, parameters in enumerate(self._seen) for p in parameters
        }
        return gone

    def _end_reductions(self, reductions):
        """All or none: a rank that is lost must not leave the steps of some parameters behind."""
        for reduction in reductions:
            reduction.wait()
        return super()._end_reductions(reductions)

    def _delta(self, p):
        """What the wrapped optimizer does to ``p`` with its gradient; ``p`` stays as it is."""
        before = p.detach().clone()
        with self._only(p), torch.no_grad():
            super(_Distributed, self).step()
            delta = p - before
            p.copy_(before)
        return delta

    @contextlib.contextmanager
    def _only(self, p):
        """The wrapped optimizer has this parameter alone."""
        everything = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = []
            self.param_groups[self._group_number[p]]["params"] = [p]
            yield
        finally:
            for group, parameters in zip(self.param_groups, everything):
                group["params"] = parameters

    def step(self, closure=None):
        """Waits for the combined steps of all ranks and takes them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        super().synchronize()
        self._end_step()
        return loss

    outside_graphs(step, calls_too=False)
    step.hooked = True  # the wrapped step runs PyTorch's step hooks, for every parameter

    def _replicated(self):
        """The parameters alone: momentum and the like are each rank's own."""
        return [(name, p) for p, name in self._parameter_names.items()]

    def _settle(self):
        raise NotImplementedError(
            "op=Adasum takes steps while backward runs, with the gradients as they are then: they "
            "cannot be clipped or unscaled (GradScaler) before step()"
        )

    def synchronize(self):
        """Does nothing: under Adasum there are no reduced gradients to wait for."""

    def skip_synchronize(self):
        """Refused: under Adasum ``step()`` is where the ranks' steps are combined."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum.")