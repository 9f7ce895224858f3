"""The stages of ZeRO: what ``shard=`` makes of an optimizer."""

import torch

from rueda.torch.sharding import _optimizer
from rueda.torch.sharding._parameters import Model, ShardedParameters


def wrap(optimizer, names, stage, share, *options, module=None, units=None, init=None, **more):
    """`_optimizer.wrap`, with a model for the stage that needs one."""
    if stage != "parameters":
        if module is not None or units is not None or init is not None:
            raise ValueError('module=, units= and init= are for shard="parameters"')
        return _optimizer.wrap(optimizer, names, stage, share, *options, **more)
    if share is not None:
        raise ValueError(
            f'share={share!r} is not for shard="parameters": on one host it has every parameter once, whole, for all ranks, which '
            'is less than each rank\'s share and the units that are gathered. Use shard="gradients", share="host".'
        )
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            'shard="parameters" gathers the parameters of a module when its forward begins: give the model, '
            'DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), shard="parameters", module=model)'
        )
    model = Model(module, units, init)
    return _optimizer.wrap(optimizer, names, stage, share, *options, **more, kind=ShardedParameters, model=model)
