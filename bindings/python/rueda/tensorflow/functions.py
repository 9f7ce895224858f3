"""Broadcasting what a training job consists of: variables, Python objects."""

import tensorflow as tf

from rueda import _objects
from rueda._runtime import runtime
from rueda.common.process_sets import global_process_set, id_for_operation
from rueda.tensorflow._errors import arguments
from rueda.tensorflow.mpi_ops import broadcast_, checked_root


def broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False):
    """Gives variables the values that they have on ``root_rank``, sent as one group.

    Parameters
    ----------
    variables : iterable of tf.Variable or keras.Variable
        Built, and the same on all ranks.
    root_rank : int
        A rank of the job, member of ``process_set``.
    inplace : bool
        Horovod's.
    """
    broadcast_([getattr(each, "value", each) if not isinstance(each, tf.Variable) else each
                for each in variables], root_rank, process_set=process_set)


def broadcast_object(
    obj, root_rank=0, session=None, name=None, process_set=global_process_set
):
    """``root_rank``'s object on every rank; it is pickled."""
    root_rank = checked_root(root_rank, process_set)
    with arguments():
        id_for_operation(process_set)
    return _objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set):
    """A function of an object that is `broadcast_object` from this root."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj, session=None, name=None, process_set=global_process_set):
    """The objects of all ranks, as a list in rank order; they are pickled."""
    runtime.require_running()
    with arguments():
        id_for_operation(process_set)
    return _objects.allgather_object(obj, name, process_set)


def _no_sessions(what):
    return RuntimeError(
        f"{what} is for sessions of TensorFlow 1, which rueda does not serve; use broadcast_variables"
    )


def broadcast_global_variables(root_rank):
    """RuntimeError: TensorFlow 2 has no global variables."""
    raise _no_sessions("broadcast_global_variables")


class BroadcastGlobalVariablesHook:
    """RuntimeError: TensorFlow 2 has no hooks of sessions."""

    def __init__(self, root_rank, device=""):
        raise _no_sessions("BroadcastGlobalVariablesHook")
