"""Horovod's ``horovod.torch.elastic``, by rueda."""

from rueda.torch.elastic import ElasticSampler, TorchState, run  # noqa: F401
