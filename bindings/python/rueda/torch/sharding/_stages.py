"""The stages of ZeRO: what ``shard=`` makes of an optimizer."""

import torch

from rueda.torch import _epochs
from rueda.torch.sharding import _optimizer
from rueda.torch.sharding._parameters import Model, ShardedParameters


def wrap(optimizer, names, stage, share, *options, module=None, units=None, init=None, **more):
    """`_optimizer.wrap`, with a model for the stage that needs one."""
    _epochs.refuse(f"shard={stage!r}")
    if stage != "parameters":
        if units is not None or init is not None:
            raise ValueError('units= and init= are for shard="parameters"')
        if module is not None and share is not None:
            raise ValueError("module= is not for share=: nothing arrives there after the step")
        model = Model(_module(stage, module), None, None) if module is not None else None
        return _optimizer.wrap(optimizer, names, stage, share, *options, **more, model=model)
    if share is not None:
        raise ValueError(
            f'share={share!r} is not for shard="parameters": on one host it has every parameter once, whole, for all ranks, which '
            'is less than each rank\'s share and the units that are gathered. Use shard="gradients", share="host".'
        )
    model = Model(_module(stage, module), units, init)
    return _optimizer.wrap(optimizer, names, stage, share, *options, **more, kind=ShardedParameters, model=model)


def _module(stage, module):
    if isinstance(module, torch.nn.Module):
        return module
    raise ValueError(
        f'shard="{stage}" gathers the parameters of a module when its forward begins: give the model, '
        f'DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), shard="{stage}", module=model)'
    )
