"""From a model and a configuration to an engine, as ``deepspeed.initialize``."""

import inspect
import os
import textwrap

import torch

from rueda.common import basics
from rueda.torch.deepspeed import _config, _optimizers
from rueda.torch.deepspeed._engine import Engine
from rueda.torch.deepspeed._schedules import SCHEDULES
from rueda.torch.functions import broadcast_parameters

VARIABLE = "RUEDA_DEEPSPEED_CONFIG"  # of ruedarun --deepspeed-config


def initialize(
    args=None,
    model=None,
    optimizer=None,
    model_parameters=None,
    training_data=None,
    lr_scheduler=None,
    mpu=None,
    dist_init_required=None,
    collate_fn=None,
    config=None,
    config_params=None,
):
    """Makes a model ready to be trained by a DeepSpeed configuration. All ranks call it.

    Parameters
    ----------
    args : object, optional
        Whose ``deepspeed_config`` is the configuration's path.
    model : torch.nn.Module
        All ranks get rank 0's parameters and buffers.
    optimizer : torch.optim.Optimizer or callable, optional
        Instead of the configuration's: one, or what makes one of parameters.
    model_parameters : iterable, optional
        Parameters or param_groups that are trained; all of the model's that require gradients.
    training_data : torch.utils.data.Dataset, optional
        What the returned loader gives, each rank its part.
    lr_scheduler : scheduler or callable, optional
        Instead of the configuration's: one, or what makes one of an optimizer.
    mpu, dist_init_required
        DeepSpeed's. The first must be None, the second is without effect: rueda.torch.init() is called if it has not been.
    collate_fn : callable, optional
        Of the loader.
    config, config_params : dict or str, optional
        The configuration or the path of a JSON file; without, that of ``ruedarun --deepspeed-config``.

    Returns
    -------
    (Engine, optimizer, loader, scheduler)
        What there is not is None.

    Raises
    ------
    ConfigError
        A key that is not obeyed, by its path, and what to do.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"initialize: model is a {type(model).__name__}, expected a torch.nn.Module")
    if mpu is not None:
        raise ValueError("initialize: mpu: rueda has no model parallelism; leave it out")
    if not basics.is_initialized():
        basics.init()
    config = _config.parse(_config.read(_given(args, config, config_params)), basics.size())
    _say_what_is_ignored(config)
    if config.stage == 0 and torch.cuda.is_available() and torch.version.cuda:
        model.to(torch.device("cuda", basics.local_rank() % torch.cuda.device_count()))
    there = {name: tensor for name, tensor in model.state_dict().items() if tensor.device.type != "meta"}
    broadcast_parameters(there, root_rank=0)
    plain = _plain_optimizer(optimizer, model, model_parameters, config)
    distributed = None if plain is None else _optimizers.distributed(plain, model, config)
    scheduler = _scheduler(lr_scheduler, distributed, config)
    engine = Engine(model, distributed, scheduler, config)
    loader = None if training_data is None else _loader(training_data, collate_fn, config)
    return engine, distributed, loader, scheduler


def _given(args, config, config_params):
    of_args = getattr(args, "deepspeed_config", None)
    given = [each for each in (config, config_params, of_args) if each is not None]
    if len(given) > 1:
        raise ValueError("initialize: give one of config, config_params and args.deepspeed_config")
    found = given[0] if given else os.environ.get(VARIABLE)
    if found is None:
        raise ValueError("initialize: there is no configuration: give config, or start with ruedarun --deepspeed-config FILE")
    return found


def _say_what_is_ignored(config):
    if not config.ignored or basics.rank() != 0:
        return
    reasons = {}
    for path, why in config.ignored.items():
        reasons.setdefault(why, []).append(path)
    text = "; ".join(f"{', '.join(paths)} ({why})" for why, paths in reasons.items())
    print(textwrap.shorten(f"rueda: keys without effect: {text}", 2000), flush=True)


def _plain_optimizer(optimizer, model, parameters, config):
    if parameters is None:
        parameters = [p for p in model.parameters() if p.requires_grad]
    elif not isinstance(parameters, (list, tuple)):
        parameters = list(parameters)
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if optimizer is not None:
        return optimizer(parameters)
    return None if config.optimizer is None else _optimizers.made(*config.optimizer, parameters)


def _scheduler(given, optimizer, config):
    if given is not None:
        return given(optimizer) if callable(given) and not hasattr(given, "step") else given
    if config.scheduler is None:
        return None
    kind, params = config.scheduler
    schedule = SCHEDULES.get(kind) or getattr(torch.optim.lr_scheduler, kind, None)
    if schedule is None:
        names = ", ".join(SCHEDULES)
        raise _config.ConfigError(f"scheduler.type: {kind!r}; there are {names} and those of torch.optim.lr_scheduler")
    if optimizer is None:
        raise _config.ConfigError("scheduler: there is no optimizer to schedule; add the key optimizer")
    known = list(inspect.signature(schedule).parameters)[1:]
    for key in params:
        if key not in known:
            raise _config.ConfigError(f"scheduler.params.{key}: {kind} has {', '.join(known)}")
    try:
        return schedule(optimizer, **params)
    except (TypeError, ValueError) as error:
        raise _config.ConfigError(f"scheduler.params: {error}") from None


def _loader(data, collate_fn, config):
    """Each rank's part, shuffled, as DeepSpeed's; ``loader.sampler.set_epoch(n)`` shuffles anew."""
    sampler = None
    if not isinstance(data, torch.utils.data.IterableDataset):
        sampler = torch.utils.data.distributed.DistributedSampler(data, basics.size(), basics.rank())
    return torch.utils.data.DataLoader(
        data, config.micro_batch_size, sampler=sampler, collate_fn=collate_fn, drop_last=config.drop_last
    )
