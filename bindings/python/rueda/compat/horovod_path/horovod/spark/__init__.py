"""Horovod's ``horovod.spark``, by rueda: functions on the tasks of a barrier stage."""

from horovod.spark.runner import run  # noqa: F401
from rueda.spark import RankFailed  # noqa: F401


def __getattr__(name):
    import rueda.spark

    return getattr(rueda.spark, name)  # which says why something is not there
