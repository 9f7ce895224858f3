"""Local SGD: every rank trains by itself, and every K steps parameters are averaged.

Sources: Stich, "Local SGD Converges Fast and Communicates Little" (2018); Lin et al., "Don't Use Large Mini-Batches, Use
Local SGD" (2018), for the synchronous steps at the beginning and the two levels.
"""

import torch

from rueda._ffi import MIN
from rueda._numbers import whole_number
from rueda.common.process_sets import ProcessSet, global_process_set, require_registered
from rueda.torch import _async
from rueda.torch.relaxed._averaging import Averaging
from rueda.torch.relaxed._periodic import Periodic
from rueda.torch.relaxed._relaxed import wrap


def LocalSGD(
    optimizer,
    named_parameters=None,
    every=8,
    begin=0,
    average_state=False,
    buffers=(),
    backward_passes_per_step=1,
    process_set=global_process_set,
):
    """Wraps an optimizer so that ranks step by themselves and average their parameters now and then.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any; its parameters, options and state are shared with the result. Only the result may step.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        ``model.named_parameters()``; all of the optimizer's, each name once.
    every : int or list of (int, ProcessSet)
        After how many local steps. A list has several levels, such as the ranks of a host more often than all: where several
        are due the one with the largest number counts, each a multiple of the one before, and its set has all
        others' members.
    begin : int
        In so many steps before the first local one gradients are averaged.
    average_state : bool
        Whether what the optimizer keeps for a parameter (momentum, ...) is averaged with it. Else it stays
        each rank's own.
    buffers : iterable of (str, torch.Tensor)
        What is averaged besides, such as ``model.named_buffers()``: those of floating point.
    backward_passes_per_step : int
        For the first ``begin`` steps, as in `DistributedOptimizer`. Locally, gradients add up until ``step()``.
    process_set : ProcessSet
        The ranks that train together; others step by themselves. With a list, those of its last level.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class. Besides: ``finish()`` averages
    what is left, and ``local_steps`` is 0 where all ranks have equal parameters.
    """
    levels = _levels(every, process_set)
    begin = whole_number("begin", begin, 0)
    return wrap(
        _LocalSGD,
        optimizer,
        named_parameters,
        levels[-1][1],
        backward_passes_per_step,
        {"levels": levels, "begin": begin, "average_state": average_state, "buffers": list(buffers)},
    )


def _levels(every, process_set):
    """(steps, set) of each, from the most frequent."""
    levels = every if isinstance(every, (list, tuple)) else [(every, process_set)]
    if not levels:
        raise ValueError("every=[]: there must be a level")
    for count, members in levels:
        whole_number("every", count, 1)
        if not isinstance(members, ProcessSet):
            raise ValueError(f"every: a level is (steps, process set), not {count, members!r}")
        require_registered(members)
    levels = sorted(levels, key=lambda level: level[0])
    for (few, inner), (many, outer) in zip(levels, levels[1:]):
        if many % few or many == few:
            raise ValueError(f"every: {many} steps are no multiple of {few}")
        if not set(inner.ranks) <= set(outer.ranks):
            raise ValueError(f"every: the set of {many} steps must have all ranks of that of {few}")
    return levels


class _LocalSGD(Periodic):
    _kind = "LocalSGD"

    def _configure(self, levels, begin, average_state, buffers):
        self._levels, self._together_until = levels, begin
        self._averages_state, self._buffers = average_state, buffers
        self._apart = 0

    @property
    def local_steps(self):
        return self._apart

    def _meet(self, number):
        self._apart += 1
        due = [level for level in self._levels if number % level[0] == 0]
        if due:
            self._average(due[-1][1])
            if due[-1] is self._levels[-1]:
                self._apart = 0

    def finish(self):
        if self._apart:
            self._average(self._levels[-1][1])
            self._apart = 0

    def _average(self, process_set):
        if not process_set.included() or process_set.size() == 1:
            return
        prefix = self._reduce_settings.prefix + "local_sgd."
        pairs = [(prefix + name, p) for name, p in self._all_parameters()]
        pairs += [(f"{prefix}buffer.{name}", value) for name, value in self._buffers]
        if self._averages_state:
            pairs += self._state_of_all(prefix, process_set)
        pairs = [(name, t) for name, t in pairs if t.is_floating_point() or t.is_complex()]
        means = Averaging(pairs, process_set).wait()
        with torch.no_grad():
            for (_, value), mean in zip(pairs, means):
                value.copy_(mean)

    def _state_of_all(self, prefix, process_set):
        """Of the parameters for which all ranks have some: a rank may not have used a layer yet."""
        members = self._all_parameters()
        has = torch.tensor([bool(self.state.get(p)) for _, p in members], dtype=torch.uint8)
        handle = _async.allreduce_async(has, name=prefix + "has_state", op=MIN, process_set=process_set)
        for (name, p), on_all in zip(members, _async.synchronize(handle).tolist()):
            for key, value in sorted(self.state[p].items()) if on_all else ():
                if key != "step" and isinstance(value, torch.Tensor):
                    yield f"{prefix}{name}.{key}", value

    def _own_state(self):
        return {**super()._own_state(), "local_steps": self._apart}

    def _take_own_state(self, state):
        super()._take_own_state(state)
        self._apart = 0 if state is None else state["local_steps"]
