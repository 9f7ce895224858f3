"""Optimizers whose ranks step by themselves and meet now and then.

    step 1 .. begin   gradients are averaged, as by a DistributedOptimizer (post-local SGD's warm-up)
    step n after it   local: no communication; then, where n is a multiple of ``every``, the ranks meet

Steps that a GradScaler leaves out because of an overflow count, too: they differ from rank to rank, and the ranks
have to meet at the same ones.
"""

import torch

from rueda.torch._outside import outside_graphs
from rueda.torch.relaxed._relaxed import Relaxed


class Periodic(Relaxed):
    """What `LocalSGD` and `DiLoCo` share."""

    _step_supports_amp_scaling = True  # GradScaler calls step() always, and says what it has found

    def _begin(self):
        process_set = self._reduce_settings.process_set
        self._has_company = process_set.included() and process_set.size() > 1
        of_class = getattr(super(), "_step_supports_amp_scaling", False)
        self._scales_itself = vars(self).get("_step_supports_amp_scaling", of_class)
        self._reduce_in_steps(self._together_until > 0)

    @property
    def local_steps(self):
        """Steps since all ranks had equal parameters; 0: they have them now."""
        raise NotImplementedError

    def _meet(self, number):
        """After local step ``number``, counted from 1."""
        raise NotImplementedError

    def _set_out(self):
        """Before a local step."""

    def _reduce_in_steps(self, wanted):
        """Whether gradients are averaged."""
        wanted = wanted and self._has_company
        if wanted and not self._has_peers:
            self._has_peers = True
            self._look_at_groups()
        elif self._has_peers and not wanted:
            self._has_peers = False
            for p in list(self._gradient_hooks):
                self._release(p)
            self._gradient_of.clear()
            self._seen, self._frozen = [], []

    def _lose(self, p):
        if p in self._gradient_hooks:
            self._release(p)
        self._lost.append(self._parameter_names[p])

    def step(self, closure=None):
        """The wrapped optimizer's step; then, when it is time, the ranks meet."""
        if self._steps >= self._together_until:
            self._set_out()
        loss, found = None, {} if self._scales_itself else self._take_findings()
        try:
            if self._is_finite(found):
                loss = super().step(closure)
            else:
                self._end_step()
        finally:
            vars(self).update(found)
        if self._steps == self._together_until:
            self._reduce_in_steps(False)
        elif self._steps > self._together_until:
            self._meet(self._steps - self._together_until)
        return loss

    outside_graphs(step, calls_too=False)  # the wrapped step may be compiled
    step.hooked = True  # the wrapped step runs PyTorch's step hooks; once is enough

    def _take_findings(self):
        """What GradScaler has put on the optimizer; PyTorch's own fail on it where they cannot use it."""
        names = [name for name in ("found_inf", "grad_scale") if name in vars(self)]
        return {name: vars(self).pop(name) for name in names}

    def _is_finite(self, found):
        """Takes GradScaler's factor out of the gradients; False if there was an overflow."""
        if float(found.get("found_inf") or 0):
            return False
        scale = found.get("grad_scale")
        if scale is not None:
            inverse = scale.double().reciprocal().float()
            with torch.no_grad():
                for group in self.__dict__["param_groups"]:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.grad.mul_(inverse)
        return True

    def check_replicas(self, every):
        """Refused: between two meetings the ranks differ. Call ``hvd.check_replicas(model)`` after ``finish()``."""
        raise ValueError(
            f"check_replicas(every={every!r}): ranks of hvd.{self._kind} differ between two meetings; call "
            "hvd.check_replicas(model) where optimizer.local_steps == 0"
        )

    def _own_state(self):
        return {"steps": self._steps}

    def _take_own_state(self, state):
        self._steps = 0 if state is None else state["steps"]
        self._reduce_in_steps(self._steps < self._together_until)
