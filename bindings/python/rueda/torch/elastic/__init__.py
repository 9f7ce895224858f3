"""Elastic membership for PyTorch: `rueda.elastic` with states of models, optimizers and samplers.

>>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
>>> @hvd.elastic.run
... def train(state): ...
"""

from rueda.elastic import reset, run, run_fn
from rueda.torch.elastic._guard import guard
from rueda.torch.elastic.sampler import ElasticSampler
from rueda.torch.elastic.state import TorchState, get_handler_registry, set_handler_registry

__all__ = [
    "ElasticSampler",
    "TorchState",
    "get_handler_registry",
    "guard",
    "reset",
    "run",
    "run_fn",
    "set_handler_registry",
]
