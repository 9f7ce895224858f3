"""Elastic membership for PyTorch: not available yet; `rueda.elastic` is there for states of plain objects."""

import torch

from rueda.elastic import ObjectState

__all__ = ["ElasticSampler", "TorchState", "run"]


def not_available(*args, **kwargs):
    """Raises NotImplementedError with what to do instead."""
    raise NotImplementedError(
        "elastic membership is not available in this version of rueda.torch: give the job a fixed "
        "number of ranks, save checkpoints on rank 0, and start it again from the last one"
    )


def run(func):
    """Not available yet: decorating a function with it raises NotImplementedError."""
    not_available()


class TorchState(ObjectState):
    """Not available yet: making one raises NotImplementedError."""

    def __init__(self, model=None, optimizer=None, **kwargs):
        not_available()


class ElasticSampler(torch.utils.data.Sampler):
    """Not available yet: making one raises NotImplementedError."""

    def __init__(self, dataset, shuffle=True, seed=0):
        not_available()


get_handler_registry = set_handler_registry = not_available
