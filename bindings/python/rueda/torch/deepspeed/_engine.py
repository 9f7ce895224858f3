"""The engine: DeepSpeed's methods around a model, a `DistributedOptimizer` and a configuration."""

import contextlib

import torch

from rueda._objects import allgather_object
from rueda.common import basics
from rueda.torch.deepspeed import _checkpoints, _precision
from rueda.torch.deepspeed._loss_scale import DynamicScale, FixedScale
from rueda.torch.deepspeed._times import Times
from rueda.torch.sharding import Sharded


class Engine(torch.nn.Module):
    """What `initialize` makes. A step is ``gradient_accumulation_steps`` times

    >>> loss = engine(batch)
    >>> engine.backward(loss)
    >>> engine.step()      # does something the last time

    Attributes
    ----------
    module : torch.nn.Module
        The model. Its parameters are float32 also under fp16 and bf16.
    optimizer, lr_scheduler
        The `DistributedOptimizer`, and what is stepped after it.
    global_steps, skipped_steps, micro_steps, global_samples : int
    """

    def __init__(self, module, optimizer, scheduler, config):
        super().__init__()
        self.module, self.optimizer, self.lr_scheduler, self.config = module, optimizer, scheduler, config
        self.global_steps = self.skipped_steps = self.micro_steps = self.global_samples = 0
        self.global_rank, self.local_rank, self.world_size = basics.rank(), basics.local_rank(), basics.size()
        self._dtype = torch.float16 if config.fp16 else torch.bfloat16 if config.bf16 else None
        if self._dtype is not None:
            _precision.convert_buffers(module, self._dtype)
        self._scale = _scale_of(config.fp16)
        self._norm, self._was_applied = None, False
        self._times = Times(config.times)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)  # as DeepSpeed's does

    # ---- a step ----

    def forward(self, *args, **kwargs):
        with self._times.of("forward"):
            if self._dtype is None:
                return self.module(*args, **kwargs)
            if self.config.fp16 and self.config.fp16.auto_cast:
                args, kwargs = (_precision.narrow_floats(each, self._dtype) for each in (args, kwargs))
            return _precision.call(self.module, self._dtype, args, kwargs)

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        """Of one micro-batch; gradients are those of the mean over all that a step has. Returns the loss, so divided."""
        self._require_optimizer()
        steps = self.config.accumulation_steps if scale_wrt_gas else 1
        with self._times.of("backward"):
            loss = loss / steps if steps > 1 else loss
            scaled = loss.float() * self._scale.scale if self._scale.scale != 1 else loss
            scaled.backward(retain_graph=retain_graph)
        return loss

    def is_gradient_accumulation_boundary(self):
        """Whether this micro-batch is the last of its step."""
        return (self.micro_steps + 1) % self.config.accumulation_steps == 0

    def step(self, lr_kwargs=None):
        """At the boundary: gradients of all ranks, clipped, change the parameters; then the schedule goes on."""
        self._require_optimizer()
        self._was_applied = False
        if self.is_gradient_accumulation_boundary():
            with self._times.of("step"):
                self._take_step(lr_kwargs or {})
        self.micro_steps += 1

    def _take_step(self, lr_kwargs):
        optimizer, config = self.optimizer, self.config
        optimizer.synchronize()
        gradients = [p.grad for group in vars(optimizer)["param_groups"] for p in group["params"] if p.grad is not None]
        if self._scale.scale != 1:
            for each in gradients:
                each.mul_(1.0 / self._scale.scale)
        overflow = config.check_overflow and self._overflows(gradients)
        if not overflow:
            if config.gradient_clipping > 0:
                self._clip(config.gradient_clipping)
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.zero_grad()
        self._scale.update(overflow)
        self.global_steps += 1
        self.global_samples += config.train_batch_size
        self._was_applied = not overflow
        if overflow:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        if config.steps_per_print and self.global_steps % config.steps_per_print == 0 and self.global_rank == 0:
            print(
                f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}{self._times.text()}", flush=True
            )

    def _overflows(self, gradients):
        """On any rank: shards differ."""
        good = all(bool(torch.isfinite(_values(each)).all()) for each in gradients)
        return not (all(allgather_object(good)) if isinstance(self.optimizer, Sharded) else good)

    def _clip(self, most):
        if isinstance(self.optimizer, Sharded):
            self._norm = self.optimizer.clip_grad_norm_(most)
            return
        parameters = [p for group in vars(self.optimizer)["param_groups"] for p in group["params"]]
        self._norm = torch.nn.utils.clip_grad_norm_(parameters, most)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @contextlib.contextmanager
    def no_sync(self):
        """As in DeepSpeed it is for stages 0 and 1; gradients travel at the boundary anyway."""
        if self.config.stage > 1:
            raise RuntimeError(f"no_sync() is not for zero_optimization.stage {self.config.stage}")
        yield

    def _require_optimizer(self):
        if self.optimizer is None:
            raise RuntimeError("this engine has no optimizer: give initialize() one, or the configuration's key optimizer")

    # ---- what it is ----

    def train_batch_size(self):
        return self.config.train_batch_size

    def train_micro_batch_size_per_gpu(self):
        return self.config.micro_batch_size

    def gradient_accumulation_steps(self):
        return self.config.accumulation_steps

    def gradient_clipping(self):
        return self.config.gradient_clipping

    def zero_optimization(self):
        return self.config.stage > 0

    def zero_optimization_stage(self):
        return self.config.stage

    def fp16_enabled(self):
        return self.config.fp16 is not None

    def bfloat16_enabled(self):
        return self.config.bf16

    def steps_per_print(self):
        return self.config.steps_per_print

    def wall_clock_breakdown(self):
        return self.config.times

    def was_step_applied(self):
        """Whether the last `step` was one at a boundary that was not skipped."""
        return self._was_applied

    @property
    def loss_scale(self):
        return self._scale.scale

    @property
    def device(self):
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def get_global_grad_norm(self):
        """Before clipping, of the last step; None without gradient_clipping."""
        return None if self._norm is None else float(self._norm)

    def get_lr(self):
        return [group["lr"] for group in vars(self.optimizer)["param_groups"]]

    # ---- checkpoints ----

    def module_state_dict(self):
        return self.module.state_dict()

    def load_module_state_dict(self, state_dict, strict=True):
        self.module.load_state_dict(state_dict, strict=strict)

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True):
        """All ranks call it. ``tag``: the name of this one in ``save_dir``, global_stepN if it is None."""
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        _checkpoints.require_one_tag(tag, self.config.tag_validation)
        state = {
            **(client_state or {}),
            "rueda": 1,
            "client_state": dict(client_state or {}),
            "module": self.module_state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
            "loss_scale": self._scale.state_dict(),
            **{name: getattr(self, name) for name in _COUNTS},
            "dp_world_size": self.world_size,
        }
        _checkpoints.save(save_dir, tag, state, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir,
        tag=None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
        weights_only=True,
    ):
        """All ranks call it. Returns (path, client_state); (None, None) where there is no ``latest``.

        ``weights_only=False``: a client_state with objects other than tensors and plain values; code that the file
        names is run for them, so it must be of somebody you trust.
        """
        path, state = _checkpoints.load(load_dir, tag, weights_only)
        if path is None:
            return None, None
        self.load_module_state_dict(state["module"], load_module_strict)
        if not load_module_only:
            if load_optimizer_states and self.optimizer is not None and state["optimizer"] is not None:
                self.optimizer.load_state_dict(state["optimizer"])
                self._scale.load_state_dict(state["loss_scale"])
            if load_lr_scheduler_states and self.lr_scheduler is not None and state["lr_scheduler"] is not None:
                self.lr_scheduler.load_state_dict(state["lr_scheduler"])
            for name in _COUNTS:
                setattr(self, name, state[name])
        return path, state["client_state"]


_COUNTS = "global_steps", "skipped_steps", "micro_steps", "global_samples"


def _scale_of(fp16):
    if fp16 is None:
        return FixedScale()
    if fp16.loss_scale:
        return FixedScale(fp16.loss_scale)
    return DynamicScale(
        2.0**fp16.initial_scale_power,
        fp16.loss_scale_window,
        fp16.hysteresis,
        fp16.consecutive_hysteresis,
        fp16.min_loss_scale,
    )


def _values(gradient):
    return gradient._values() if gradient.layout is torch.sparse_coo else gradient
