"""What losses are multiplied by, so that gradients of float16 are not lost below its smallest number.

DeepSpeed's rules: a step with an overflow is skipped and halves the scale, once ``hysteresis`` of them have come;
``window`` steps without one double it.
"""


class FixedScale:
    """As the configuration says, whatever a checkpoint has."""

    def __init__(self, scale=1.0):
        self.scale = float(scale)

    def update(self, overflow):
        pass

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        pass


class DynamicScale:
    """Parameters as in the configuration, section fp16."""

    def __init__(self, initial_scale, window, hysteresis, consecutive_hysteresis, least):
        self.scale = float(initial_scale)
        self._window, self._hysteresis, self._least = window, hysteresis, least
        self._refills = consecutive_hysteresis
        self._left = hysteresis
        self._step, self._last_overflow = 0, -1

    def update(self, overflow):
        """After each step; RuntimeError where the scale is at its least and still too large."""
        if overflow:
            if self._left == 1:
                if self.scale == self._least:
                    raise RuntimeError(
                        f"gradients overflow float16 at the smallest loss scale ({self._least}, fp16.min_loss_scale): "
                        "the model has diverged, or use bf16"
                    )
                self.scale = max(self.scale / 2, self._least)
            else:
                self._left -= 1
            self._last_overflow = self._step
        else:
            if self._refills:
                self._left = self._hysteresis
            stable = self._step - self._last_overflow - 1
            if stable > 0 and stable % self._window == 0:
                if not self._refills:
                    self._left = self._hysteresis
                self.scale *= 2
        self._step += 1

    def state_dict(self):
        return {"scale": self.scale, "left": self._left, "step": self._step, "last_overflow": self._last_overflow}

    def load_state_dict(self, state):
        if "left" not in state:  # of a `FixedScale`
            return
        self.scale, self._left = state["scale"], state["left"]
        self._step, self._last_overflow = state["step"], state["last_overflow"]
