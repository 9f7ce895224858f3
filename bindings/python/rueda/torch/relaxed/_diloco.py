"""DiLoCo: ranks train by themselves for H steps; an outer optimizer takes what they have changed for a gradient.

    inner   H steps of the wrapped optimizer on each rank, from the outer parameters theta
    outer   theta <- OuterOptimizer(theta, mean over ranks of (theta - what the rank has come to));  rank <- theta

Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023, arXiv 2311.08105);
"Streaming DiLoCo with overlapping communication" (2025, arXiv 2501.18512) for fragments, delay and mix.
"""

import torch

from rueda._numbers import whole_number
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.torch._compress_reducer import reducer_for_optimizer
from rueda.torch._distributed import _SETTLE_SECONDS
from rueda.torch.compression import Compression
from rueda.torch.relaxed import _fragments
from rueda.torch.relaxed._averaging import Averaging, Ended
from rueda.torch.relaxed._periodic import Periodic
from rueda.torch.relaxed._relaxed import wrap


def nesterov(parameters):
    """The paper's outer optimizer."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def DiLoCo(
    optimizer,
    named_parameters=None,
    every=100,
    outer=nesterov,
    begin=0,
    fragments=1,
    delay=0,
    mix=None,
    compression=Compression.none,
    backward_passes_per_step=1,
    process_set=global_process_set,
):
    """Wraps an optimizer so that its steps are local, and an outer optimizer brings the ranks together.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The inner one; in the paper AdamW. Its state is each rank's own. Only the result may step.
    named_parameters : iterable of (str, torch.nn.Parameter), optional
        ``model.named_parameters()``; all of the optimizer's, each name once.
    every : int
        H: local steps between two outer ones.
    outer : callable
        Makes the outer optimizer of a list of tensors, the outer parameters. It is ``optimizer.outer`` then, for
        schedulers. All ranks take the same outer steps, each by itself.
    begin : int
        In so many steps before the first local one gradients are averaged.
    fragments : int
        F: parameters in so many parts, whose outer steps are H / F steps apart, so that less travels at a time.
    delay : int
        Local steps that go on while a mean is under way; the outer step comes behind them. Below ``every``.
    mix : float, optional
        How much of its own value a rank keeps in an outer step; else 0, with a delay 0.5.
    compression
        Of what travels, as in `DistributedOptimizer`.
    backward_passes_per_step : int
        For the first ``begin`` steps, as in `DistributedOptimizer`. Locally, gradients add up until ``step()``.
    process_set : ProcessSet
        The ranks that train together; others step by themselves.

    Returns
    -------
    An instance of a new class with the name of, and derived from, the optimizer's class. Besides: ``finish()`` takes the
    outer steps that are left, ``local_steps`` is 0 where all ranks have equal parameters, ``outer`` is the outer optimizer.
    """
    every = whole_number("every", every, 1)
    begin = whole_number("begin", begin, 0)
    fragments = whole_number("fragments", fragments, 1)
    delay = whole_number("delay", delay, 0)
    if delay >= every:
        raise ValueError(f"delay={delay}: must be below every={every}, or a mean would not be there for the next")
    if fragments > every:
        raise ValueError(f"fragments={fragments}: must not be above every={every}")
    mix = (0.5 if delay else 0.0) if mix is None else mix
    if not 0 <= mix < 1:
        raise ValueError(f"mix={mix!r} must be >= 0 and < 1")
    compression = reducer_for_optimizer(compression, basics.Average, [])
    options = {"every": every, "outer": outer, "begin": begin, "count": fragments, "delay": delay, "mix": mix}
    options["compression"] = compression
    return wrap(_DiLoCo, optimizer, named_parameters, process_set, backward_passes_per_step, options)


class _Fragment:
    """Parameters whose outer steps come together."""

    def __init__(self, members):
        self.members = members  # (name, parameter)
        self.apart = 0  # steps since all ranks had equal ones
        self.under_way = None  # the `Averaging` of what they have changed
        self.left = 0  # steps until its outer step
        self.since = 0  # steps since that was begun


class _DiLoCo(Periodic):
    _kind = "DiLoCo"

    def _configure(self, every, outer, begin, count, delay, mix, compression):
        self._every, self._make_outer, self._together_until = every, outer, begin
        self._count, self._delay, self._mix, self._compression = count, delay, mix, compression

    def _begin(self):
        super()._begin()
        self._outer_of = {}  # parameter: its outer one
        self._fragments = []
        self._is_out = False  # the outer parameters are those that local steps began with
        self.outer = None
        self._follow()

    @property
    def local_steps(self):
        return max([fragment.apart for fragment in self._fragments], default=0)

    def _follow(self):
        """Takes parameters that are new."""
        members = self._members()
        new = [p for _, p in members if p not in self._outer_of]
        if not new:
            return
        self._settle_all()
        copies = [p.detach().clone() for p in new]
        self._outer_of.update(zip(new, copies))
        if self.outer is None:
            self.outer = self._make_outer(copies)
        else:
            self.outer.add_param_group({"params": copies})
        self._cut(members, self.local_steps)

    def _cut(self, members, apart):
        self._fragments = [_Fragment([members[number] for number in part]) for part in self._parts(members)]
        for fragment in self._fragments:
            fragment.apart = apart

    def _parts(self, members):
        return _fragments.cut([p.numel() for _, p in members], self._count)

    def _members(self):
        return [(name, p) for name, p in self._all_parameters() if p.is_floating_point() or p.is_complex()]

    def _set_out(self):
        self._follow()
        if not self._is_out:
            self._is_out = True
            with torch.no_grad():
                for p, outer in self._outer_of.items():
                    outer.copy_(p)

    def _meet(self, number):
        for index, fragment in enumerate(self._fragments):
            fragment.apart += 1
            fragment.since += 1
            if fragment.under_way is not None:
                fragment.left -= 1
                if fragment.left == 0:
                    self._outer_step(fragment, self._mix)
            if _fragments.is_due(number, index, len(self._fragments), self._every):
                self._start(fragment)
                fragment.left = self._delay
                if self._delay == 0:
                    self._outer_step(fragment, self._mix)

    def _start(self, fragment):
        prefix = self._reduce_settings.prefix + "diloco."
        with torch.no_grad():
            changes = [(prefix + name, self._outer_of[p] - p) for name, p in fragment.members]
        fragment.under_way = Averaging(changes, self._reduce_settings.process_set, self._compression)
        fragment.since = 0

    def _outer_step(self, fragment, mix):
        under_way, fragment.under_way = fragment.under_way, None
        means = under_way.wait()  # after an error the ranks' own parameters stay
        for (_, p), mean in zip(fragment.members, means):
            self._outer_of[p].grad = mean
        self.outer.step()
        with torch.no_grad():
            for _, p in fragment.members:
                outer = self._outer_of[p]
                outer.grad = None
                if mix:
                    p.lerp_(outer, 1 - mix)
                else:
                    p.copy_(outer)
        fragment.apart = max(1, fragment.since) if mix else 0

    def _settle_all(self):
        """Takes the outer steps that are under way."""
        for fragment in self._fragments:
            if fragment.under_way is not None:
                self._outer_step(fragment, self._mix)

    def finish(self):
        self._settle_all()
        for fragment in self._fragments:
            if fragment.apart:
                self._start(fragment)
                self._outer_step(fragment, 0.0)

    def _own_state(self):
        """Waits for the means under way: with a `Reducer` all ranks must, or this one's collectives lack theirs."""
        return {
            **super()._own_state(),
            "is_out": self._is_out,
            "outer": None if self.outer is None else self.outer.state_dict(),
            "outer_parameters": [self._outer_of[p].clone() for _, p in self._members()],
            "fragments": [
                {
                    "apart": fragment.apart,
                    "since": fragment.since,
                    "left": fragment.left,
                    "means": None if fragment.under_way is None else list(fragment.under_way.wait()),
                }
                for fragment in self._fragments
            ],
        }

    def _check_own_state(self, state):
        had, own = len(state["fragments"]), len(self._parts(self._members()))
        if had != own:
            raise ValueError(f"this is the state of hvd.DiLoCo with fragments={had}, not {own}")

    def _take_own_state(self, state):
        super()._take_own_state(state)
        for fragment in self._fragments:
            if fragment.under_way is not None:
                fragment.under_way.give_up(_SETTLE_SECONDS)
                fragment.under_way = None
        self._follow()
        members = self._members()
        self._cut(members, 0)
        self._is_out = state is not None and state["is_out"]
        if state is None:
            self.outer.state.clear()
            return
        self.outer.load_state_dict(state["outer"])
        for (_, p), outer in zip(members, state["outer_parameters"]):
            self._outer_of[p].copy_(outer)
        for fragment, was in zip(self._fragments, state["fragments"]):
            fragment.apart, fragment.since, fragment.left = was["apart"], was["since"], was["left"]
            if was["means"] is not None:
                fragment.under_way = Ended(was["means"])
