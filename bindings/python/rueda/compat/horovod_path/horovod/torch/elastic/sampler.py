"""Horovod's ``horovod.torch.elastic.sampler``, by rueda."""

from rueda.torch.elastic.sampler import ElasticSampler  # noqa: F401
