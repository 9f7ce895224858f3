"""Horovod's ``horovod.runner``, by rueda: starting jobs."""

from rueda.compat.run import run  # noqa: F401
