"""Learning rates for many ranks: scaled by their number, and reached slowly.

A step of n ranks averages over n batches, so it can be n times as long (Goyal et al. 2017,
"Accurate, Large Minibatch SGD"); at the start of training it must not. The rate of one rank
therefore grows to n times that over the first steps.

Momentum holds old gradients times the old rate's relation to the new. While the rate changes,
momentum is multiplied by new rate / old rate for that step, which keeps the size of the velocity
right (the same paper, remark 3).
"""

import torch

from rueda.common import basics


class LearningRateWarmup(torch.optim.lr_scheduler.LambdaLR):
    """Multiplies the learning rates by a factor that grows from 1 to ``scale``, and stays there.

    Call ``step()`` after every ``optimizer.step()``. Its ``state_dict`` is that of LambdaLR.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With the learning rates that one rank alone would use.
    warmup_steps : int
        After how many steps the full rate is reached; the growth is linear. 0: at once.
    scale : float, optional
        Default: the number of ranks. 1 for op=Adasum; for op=Sum too, as the gradients themselves
        are that much larger.
    then : callable, optional
        ``then(step)`` with steps counted from the end of the warm-up, multiplied in after it: for a
        decay.
    momentum_correction : bool
        Adapts ``momentum`` of optimizers that have it while the rate grows.
    last_epoch : int
        Number of the last step when resuming, as in LambdaLR.
    """

    def __init__(
        self,
        optimizer,
        warmup_steps,
        scale=None,
        then=None,
        momentum_correction=True,
        last_epoch=-1,
    ):
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps={warmup_steps} must not be negative")
        scale = basics.size() if scale is None else scale

        def factor(step):
            if step < warmup_steps:
                return 1.0 + (scale - 1.0) * step / warmup_steps
            return scale * (then(step - warmup_steps) if then is not None else 1.0)

        self.warmup_steps = warmup_steps
        self._correct = momentum_correction
        for group in optimizer.param_groups:
            if "momentum" in group:
                group.setdefault("initial_momentum", group["momentum"])
        super().__init__(optimizer, factor, last_epoch)

    def step(self, *args, **kwargs):
        """Sets the rates of the next step."""
        groups = self.optimizer.param_groups
        before = [group["lr"] for group in groups]
        super().step(*args, **kwargs)
        for group, old in zip(groups, before):
            if self._correct and group.get("momentum"):
                grows = 0 < self.last_epoch <= self.warmup_steps and old
                ratio = group["lr"] / old if grows else 1.0
                group["momentum"] = group["initial_momentum"] * float(ratio)
