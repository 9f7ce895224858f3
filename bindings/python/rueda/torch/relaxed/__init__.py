"""Other ways to bring ranks together than to average gradients in every step (docs/relaxed_updates.md).

    _comm_hook        the script says how gradients are combined; `_buckets` is what it is given
    _relaxed          what the optimizers below have in common
    _periodic         ranks step by themselves and meet now and then
    _local_sgd        they average their parameters
    _diloco           an outer optimizer takes what they have changed for a gradient; `_fragments`: in parts (pure)
    _averaging        means that are under way
    _async_optimizer  steps with the gradients of earlier ones
"""

from rueda.torch.relaxed._async_optimizer import AsyncOptimizer
from rueda.torch.relaxed._comm_hook import register_comm_hook
from rueda.torch.relaxed._diloco import DiLoCo
from rueda.torch.relaxed._local_sgd import LocalSGD

__all__ = ["AsyncOptimizer", "DiLoCo", "LocalSGD", "register_comm_hook"]
