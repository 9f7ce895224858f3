"""DeepSpeed's learning rate schedules, by the formulas of its documentation
(https://deepspeed.readthedocs.io/en/latest/schedulers.html).

Each is stepped once after each step of the optimizer; the first of those is made with the rate of ``step -1``,
which the constructor sets. They keep one number, the last step, as DeepSpeed's do.
"""

import math

from rueda._numbers import whole_number


def _of_groups(groups, value, name):
    values = list(value) if isinstance(value, (list, tuple)) else [value] * len(groups)
    if len(values) != len(groups):
        raise ValueError(f"{name} has {len(values)} values for {len(groups)} param_groups")
    return values


class Schedule:
    """Base: sets ``lr`` of an optimizer's param_groups."""

    def __init__(self, optimizer, last_batch_iteration=-1):
        self.optimizer, self.last_batch_iteration = optimizer, last_batch_iteration
        if last_batch_iteration == -1:
            self._apply()

    @property
    def _groups(self):
        return vars(self.optimizer).get("param_groups") or self.optimizer.param_groups

    def get_lr(self):
        """Of each group, after ``last_batch_iteration``."""
        raise NotImplementedError

    def _apply(self):
        self._last_lr = list(self.get_lr())
        for group, lr in zip(self._groups, self._last_lr):
            group["lr"] = lr

    def get_last_lr(self):
        return self._last_lr

    def step(self, last_batch_iteration=None):
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        self.last_batch_iteration = state["last_batch_iteration"]


def _warmup(step, steps, kind):
    """The share of the way from the least to the largest rate, before ``steps``."""
    if kind == "linear":
        return step / steps
    return math.log(step + 1) / math.log(steps)


def _checked(steps, kind):
    steps = whole_number("warmup_num_steps", steps, 1)
    if kind not in ("log", "linear"):
        raise ValueError(f"warmup_type: {kind!r}; there are 'log' and 'linear'")
    return max(2, steps)


class WarmupLR(Schedule):
    """From ``warmup_min_lr`` to ``warmup_max_lr`` (the optimizer's own) in ``warmup_num_steps``; then constant."""

    def __init__(
        self,
        optimizer,
        warmup_min_lr=0.0,
        warmup_max_lr=None,
        warmup_num_steps=1000,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        self.optimizer = optimizer
        groups = self._groups
        if warmup_max_lr is None:
            warmup_max_lr = [group["lr"] for group in groups]
        self._least = _of_groups(groups, warmup_min_lr, "warmup_min_lr")
        self._most = _of_groups(groups, warmup_max_lr, "warmup_max_lr")
        self._steps, self._kind = _checked(warmup_num_steps, warmup_type), warmup_type
        super().__init__(optimizer, last_batch_iteration)

    def _share(self):
        if self.last_batch_iteration < self._steps:
            return _warmup(self.last_batch_iteration, self._steps, self._kind)
        return self._behind()

    def _behind(self):
        return 1.0

    def get_lr(self):
        if self.last_batch_iteration < 0:
            return self._least
        share = self._share()
        return [least + (most - least) * share for least, most in zip(self._least, self._most)]


class WarmupDecayLR(WarmupLR):
    """`WarmupLR`, then linearly to ``warmup_min_lr`` at ``total_num_steps``."""

    def __init__(
        self,
        optimizer,
        total_num_steps,
        warmup_min_lr=0.0,
        warmup_max_lr=0.001,
        warmup_num_steps=1000,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        self._total = total_num_steps
        super().__init__(
            optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration
        )

    def _behind(self):
        left = self._total - self.last_batch_iteration
        return max(0.0, left / max(1.0, self._total - self._steps))


class WarmupCosineLR(Schedule):
    """The optimizer's own rate times a ratio: from ``warmup_min_ratio`` to 1, then along a cosine to
    ``cos_min_ratio`` at ``total_num_steps``, and so on.
    """

    def __init__(
        self,
        optimizer,
        total_num_steps,
        warmup_min_ratio=0.0,
        warmup_num_steps=1000,
        cos_min_ratio=0.0001,
        warmup_type="log",
        last_batch_iteration=-1,
    ):
        self.optimizer = optimizer
        self._total, self._steps = total_num_steps, _checked(warmup_num_steps, warmup_type)
        self._first, self._last, self._kind = warmup_min_ratio, cos_min_ratio, warmup_type
        self._own = [group["lr"] for group in self._groups]
        super().__init__(optimizer, last_batch_iteration)

    def _ratio(self):
        step = self.last_batch_iteration
        if step < 0:
            return 0.0
        if step < self._steps:
            return self._first + _warmup(step, self._steps, self._kind) * (1.0 - self._first)
        way = min(1.0, (step - self._steps + 1) / max(1, self._total - self._steps))
        return max(0.0, self._last + (1.0 - self._last) * (1 + math.cos(math.pi * way)) / 2)

    def get_lr(self):
        ratio = self._ratio()
        return [lr * ratio for lr in self._own]


class OneCycle(Schedule):
    """From ``cycle_min_lr`` to ``cycle_max_lr`` and back, then down by ``decay_lr_rate``; momentum (the first of
    ``betas``) the other way round.
    """

    def __init__(
        self,
        optimizer,
        cycle_min_lr,
        cycle_max_lr,
        decay_lr_rate=0.0,
        cycle_first_step_size=2000,
        cycle_second_step_size=None,
        cycle_first_stair_count=0,
        cycle_second_stair_count=None,
        decay_step_size=0,
        cycle_momentum=True,
        cycle_min_mom=0.8,
        cycle_max_mom=0.9,
        decay_mom_rate=0.0,
        last_batch_iteration=-1,
    ):
        self.optimizer = optimizer
        groups = self._groups
        self._lr = _of_groups(groups, cycle_min_lr, "cycle_min_lr"), _of_groups(groups, cycle_max_lr, "cycle_max_lr")
        self._first = float(cycle_first_step_size)
        self._second = self._first if cycle_second_step_size is None else float(cycle_second_step_size)
        if self._first <= 0 or self._second < 0:
            raise ValueError("cycle_first_step_size must be positive, cycle_second_step_size not negative")
        self._stairs = cycle_first_stair_count, cycle_second_stair_count
        if cycle_second_stair_count is None:
            self._stairs = (cycle_first_stair_count,) * 2
        self._decay_steps, self._decay_lr, self._decay_mom = decay_step_size, decay_lr_rate, decay_mom_rate
        self._cycles_momentum = cycle_momentum and all("betas" in group for group in groups)
        self._mom = _of_groups(groups, cycle_min_mom, "cycle_min_mom"), _of_groups(groups, cycle_max_mom, "cycle_max_mom")
        super().__init__(optimizer, last_batch_iteration)

    def _place(self):
        """0 where a cycle begins and ends, 1 at its top."""
        step, whole = self.last_batch_iteration + 1, self._first + self._second
        top = self._first / whole
        way = 1.0 + step / whole - math.floor(1 + step / whole)
        rises = way <= top
        stairs = self._stairs[0 if rises else 1]
        if stairs > 0:
            at = step % whole
            return math.floor(at * stairs / self._first if at <= self._first else (whole - at) * stairs / self._second) / stairs
        return way / top if rises else (way - 1) / (top - 1)

    def _decay(self):
        """Intervals since the cycle; None within it."""
        behind = self.last_batch_iteration - (self._first + self._second)
        return None if behind < 0 else (behind + 1) / self._decay_steps if self._decay_steps else 0.0

    def get_lr(self):
        if self.last_batch_iteration < 0:
            return self._lr[0]
        decay = self._decay()
        if decay is not None:
            return [least / (1 + self._decay_lr * decay) for least in self._lr[0]]
        place = self._place()
        return [least + (most - least) * place for least, most in zip(*self._lr)]

    def get_mom(self):
        if not self._cycles_momentum:
            return None
        if self.last_batch_iteration < 0:
            return [(least, 0.99) for least in self._mom[0]]
        decay = self._decay()
        if decay is not None:
            return [(most * (1 + self._decay_mom * decay), 0.99) for most in self._mom[1]]
        place = self._place()
        return [(most - (most - least) * place, 0.99) for least, most in zip(*self._mom)]

    def _apply(self):
        super()._apply()
        for group, betas in zip(self._groups, self.get_mom() or ()):
            group["betas"] = betas


class LRRangeTest(Schedule):
    """``lr_range_test_min_lr``, more by ``lr_range_test_step_rate`` of it every ``lr_range_test_step_size`` steps."""

    def __init__(
        self,
        optimizer,
        lr_range_test_min_lr=1e-3,
        lr_range_test_step_size=2000,
        lr_range_test_step_rate=1.0,
        lr_range_test_staircase=False,
        last_batch_iteration=-1,
    ):
        self.optimizer = optimizer
        self._least = _of_groups(self._groups, lr_range_test_min_lr, "lr_range_test_min_lr")
        self._steps = whole_number("lr_range_test_step_size", lr_range_test_step_size, 1)
        self._rate, self._in_stairs = lr_range_test_step_rate, lr_range_test_staircase
        super().__init__(optimizer, last_batch_iteration)

    def get_lr(self):
        if self.last_batch_iteration < 0:
            return self._least
        intervals = (self.last_batch_iteration + 1) / self._steps
        intervals = math.floor(intervals) if self._in_stairs else intervals
        return [least * (1 + self._rate * intervals) for least in self._least]


SCHEDULES = {each.__name__: each for each in (WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest)}
