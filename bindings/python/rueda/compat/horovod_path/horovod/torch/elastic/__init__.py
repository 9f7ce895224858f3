"""Horovod's ``horovod.torch.elastic``, by rueda."""

from rueda.torch.elastic import ElasticSampler, TorchState, reset, run, run_fn  # noqa: F401
from rueda.torch.mpi_ops import init, shutdown  # noqa: F401
