"""Optimizers whose state and gradients are divided over the ranks: the stages of ZeRO.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020).
`rueda.torch.DistributedOptimizer` with ``shard=`` makes one.

    _layout     which parameters lie together in flat memory, and which part of it is whose (pure)
    _batch      that memory, the hook of a parameter, and what of it is under way
    _host_values  one copy of the values for all ranks of a host
    _arrivals   modules that wait for what other ranks have updated
    _journal    what undoes a step in which a rank of the host died
    _hosts      who is on which host, and how the hosts' copies come to be the same
    _wire       the collectives: an ordered group of the ranks
    _optimizer  a step
    _state      state_dict and load_state_dict, from and to a plain optimizer's
    _sources    where state can be loaded from; _opening tells which it is
    _checkpoint, _saving  state in files (_values: options as JSON)
    _deepspeed, _unpickling  DeepSpeed's files; _converting  `rueda migrate checkpoint`
    _keeping    what state is between steps: _codecs in fewer bytes, _file on disk (_pages); _stepping one batch after another
    _budget     whether there is memory for the first step
    _elementwise  which optimizers may be cut anywhere

The stage whose parameters are divided too:

    _units       which modules are gathered as one (pure)
    _flat        a unit's flat memory: shares of values and gradients
    _unit, _pools  where a unit's parameters are: away, loaded, here
    _passes      forward, backward, prefetch, reductions
    _hooks       what a module has on it
    _parameters  its optimizer
    _stages      which optimizer a stage has
    _materialize, _whole  first values, whole values
"""

from rueda.torch.sharding._materialize import no_init
from rueda.torch.sharding._opening import load_plain
from rueda.torch.sharding._optimizer import STAGES, Sharded
from rueda.torch.sharding._stages import wrap
from rueda.torch.sharding._whole import gathered, load_parameters

__all__ = ["STAGES", "Sharded", "gathered", "load_parameters", "load_plain", "no_init", "wrap"]
