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


def told_and_true_place():
    """Rank, size, local rank, ...: as Horovod's variables say it, and as the job does."""
    import rueda as hvd

    hvd.init()
    names = "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"
    told = [os.environ.get(f"HOROVOD_{name.upper()}") for name in names]
    return told, [str(getattr(hvd, name)()) for name in names]


def _node():
    if "ray" not in sys.modules:
        return None
    import ray

    return ray.get_runtime_context().get_node_id()


def is_rueda():
    """Whether a function of a script for Horovod gets rueda."""
    import horovod.common.process_sets
    import rueda.common.process_sets

    return horovod.common.process_sets.ProcessSet is rueda.common.process_sets.ProcessSet


def count_ranks(steps, folder, wanted, victim=None):
    """Trains in an elastic job: (rank, the number of ranks in each step).

    ``wanted``: after ``steps`` steps it goes on until steps of so many ranks were made, in this order. ``victim``:
    the member that kills itself in step 5. Files in the folder are named after numbers of ranks that were there.
    """
    import pathlib
    import signal

    import numpy
    import rueda as hvd
    import rueda.elastic
    from rueda._runtime import runtime

    hvd.init()

    def comes_in_order(some, numbers):
        numbers = iter(numbers)
        return all(number in numbers for number in some)

    @rueda.elastic.run
    def train(state):
        while state.step < steps or not comes_in_order(wanted, state.sizes):
            if state.step == 5 and runtime.epoch.member == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            number = hvd.allreduce(numpy.ones(1), op=hvd.Sum, name="number")
            state.sizes = [*state.sizes, int(number[0])]
            state.step += 1
            state.commit()
            if hvd.rank() == 0:
                pathlib.Path(folder, f"{state.sizes[-1]}.ranks").touch()
        return state.sizes

    sizes = train(rueda.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, sizes=[]))
    return hvd.rank(), sizes
