"""Horovod's ``horovod.torch.elastic.sampler``, by rueda."""

from rueda.torch.elastic import ElasticSampler  # noqa: F401
