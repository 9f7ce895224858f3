"""Horovod's ``horovod.torch.elastic.state``, by rueda."""

from rueda.torch.elastic import (  # noqa: F401
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
