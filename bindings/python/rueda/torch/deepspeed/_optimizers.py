"""The optimizer that a configuration asks for, and rueda's around it."""

import inspect

import torch

from rueda.common import basics
from rueda.torch.compression import Compression
from rueda.torch.deepspeed._config import ConfigError
from rueda.torch.optimizer import DistributedOptimizer

_SHARDS = {0: None, 1: "state", 2: "gradients", 3: "parameters"}
# In any case; others by their names in torch.optim.
_KNOWN = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}
# Arguments of DeepSpeed's own optimizers: what they must say, if anything.
_THEIRS = {"torch_adam": None, "adam_w_mode": None, "bias_correction": True, "set_grad_none": True, "fp32_optimizer_states": True}


def made(kind, params, parameters):
    """The plain optimizer of a configuration."""
    params = dict(params)
    if "max_grad_norm" in params:
        raise ConfigError("optimizer.params.max_grad_norm: write gradient_clipping, beside optimizer")
    name = _KNOWN.get(kind.lower(), kind)
    if name == "Adam" and params.get("adam_w_mode", True):
        name = "AdamW"  # as DeepSpeed does: weight decay is apart from the gradient
    elif name == "AdamW" and params.get("adam_w_mode") is False:
        raise ConfigError("optimizer.params.adam_w_mode: false is Adam; write that as optimizer.type")
    optimizer = getattr(torch.optim, name, None)
    if not (inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer)) or name == "Optimizer":
        raise ConfigError(
            f"optimizer.type: {kind!r} is not in torch.optim; there are Adam, AdamW, SGD, Adagrad and what else PyTorch has. "
            "Or give initialize() an optimizer"
        )
    adam = name in ("Adam", "AdamW")
    for key in _THEIRS if adam else ():
        value, needed = params.pop(key, None), _THEIRS[key]
        if value is not None and needed is not None and value is not needed:
            raise ConfigError(f"optimizer.params.{key}: {value!r}: rueda has PyTorch's {name}, where it is {needed}; leave it out")
    known = list(inspect.signature(optimizer).parameters)[1:]
    for key in params:
        if key not in known:
            raise ConfigError(f"optimizer.params.{key}: {name} has {', '.join(known)}")
    if isinstance(params.get("betas"), list):
        params["betas"] = tuple(params["betas"])
    return optimizer(parameters, **params)


def distributed(optimizer, model, config):
    """That optimizer over all ranks, in the stage of the configuration."""
    stage = config.stage
    options = {
        "named_parameters": _names(model, optimizer),
        "backward_passes_per_step": config.accumulation_steps,
        "op": basics.Average if config.averages else basics.Sum,
        "gradient_predivide_factor": config.predivide,
    }
    if config.communication is not None:
        options["compression"] = getattr(Compression, config.communication)
    if stage == 0:
        return DistributedOptimizer(optimizer, sparse_as_dense=not config.sparse_gradients, **options)
    if stage == 3:
        if config.fp16 or config.bf16:
            raise ConfigError("zero_optimization.stage: 3 excludes fp16 and bf16: parameters are gathered in float32; leave these out")
        if config.offload_param not in (None, "cpu"):
            raise ConfigError("zero_optimization.offload_param.device: 'nvme': parameters stay in memory; write \"cpu\"")
        options["module"] = model
    return DistributedOptimizer(optimizer, shard=_SHARDS[stage], offload=config.offload_optimizer, **options)


def _names(model, optimizer):
    """Of all of the optimizer's parameters, those of the model by their names there."""
    names = {p: name for name, p in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for index, p in enumerate(group["params"]):
            names.setdefault(p, f"group {number}, parameter {index}")
    used = {p for group in optimizer.param_groups for p in group["params"]}
    return [(name, p) for p, name in names.items() if p in used]
