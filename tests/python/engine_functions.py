"""Functions that actors of Ray and tasks of Spark call; they find this module on PYTHONPATH."""

import os
import sys


def where_and_sum(scale=1):
    """(rank, size, a sum over ranks, Ray's node, pid, a variable)"""
    import numpy
    import rueda as hvd

    hvd.init()
    total = hvd.allreduce(numpy.full(3, scale * (hvd.rank() + 1.0)), op=hvd.Sum, name="x").tolist()
    return hvd.rank(), hvd.size(), total, _node(), os.getpid(), os.environ.get("SAID")


def _node():
    if "ray" not in sys.modules:
        return None
    import ray

    return ray.get_runtime_context().get_node_id()
