"""Elastic membership for PyTorch: not available yet; see `rueda.common.elastic`."""

import torch

from rueda.common.elastic import ObjectState, not_available

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func):
    """Not available yet: decorating a function with it raises NotImplementedError."""
    not_available()


class TorchState(ObjectState):
    """Not available yet: making one raises NotImplementedError."""


class ElasticSampler(torch.utils.data.Sampler):
    """Not available yet: making one raises NotImplementedError."""

    def __init__(self, dataset, shuffle=True, seed=0):
        not_available()


get_handler_registry = set_handler_registry = not_available
