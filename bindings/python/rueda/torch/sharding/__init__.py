"""Optimizers whose state and gradients are divided over the ranks: the stages of ZeRO.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020).
`rueda.torch.DistributedOptimizer` with ``shard=`` makes one.

    _layout     which parameters lie together in flat memory, and which part of it is whose (pure)
    _batch      that memory, the hook of a parameter, and what of it is under way
    _host_values  one copy of the values for all ranks of a host
    _hosts      who is on which host, and how the hosts' copies come to be the same
    _wire       the collectives: an ordered group of the ranks
    _optimizer  a step
    _state      state_dict and load_state_dict, from and to a plain optimizer's
    _sources    where state can be loaded from; _opening tells which it is
    _checkpoint, _saving  state in files (_values: options as JSON)
    _deepspeed, _unpickling  DeepSpeed's files; _converting  `rueda migrate checkpoint`
    _keeping    what state is between steps: _codecs in fewer bytes, _file on disk; _stepping one batch after another
    _budget     whether there is memory for the first step
    _elementwise  which optimizers may be cut anywhere
"""

from rueda.torch.sharding._opening import load_plain
from rueda.torch.sharding._optimizer import STAGES, Sharded, wrap

__all__ = ["STAGES", "Sharded", "load_plain", "wrap"]
