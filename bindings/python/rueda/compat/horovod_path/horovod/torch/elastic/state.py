"""Horovod's ``horovod.torch.elastic.state``, by rueda."""

from rueda.torch.elastic.state import (  # noqa: F401
    LRSchedulerStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
