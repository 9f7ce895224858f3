"""Collectives on values, a model's variables, and a saved model that goes on training."""

import contextlib
import os
import shutil
import tempfile

import keras

from rueda import _array_collectives
from rueda._numpy import np
from rueda._objects import allgather_object, broadcast_object  # noqa: F401
from rueda._waiting import synchronize
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.keras import _framework
from rueda.keras._framework import Compression
from rueda.keras.optimizer import DistributedOptimizer


def _array(value):
    return keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else np.asarray(value)


def allreduce(
    value,
    name=None,
    average=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    op=None,
    compression=Compression.none,
    process_set=global_process_set,
):
    """The reduction of a number, array or tensor over all ranks, as a NumPy array.

    Parameters
    ----------
    value
        Of equal shape and dtype on all ranks.
    name : str, optional
        Ranks match operations by it; without, by their number.
    average : bool, optional
        Horovod's older word for ``op``.
    prescale_factor, postscale_factor : float
        Applied before and after the reduction.
    op : int, optional
        ``Average`` (without one), ``Sum``, ``Adasum``, ``Min``, ``Max``, ``Product``.
    compression : type
        Horovod's; values travel as they are.
    process_set : ProcessSet
        The ranks that take part.
    """
    return _array_collectives.allreduce(
        _array(value),
        average,
        name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def allgather(value, name=None, process_set=global_process_set):
    """The rows of all ranks' arrays, in rank order."""
    return _array_collectives.allgather(_array(value), name, process_set)


def broadcast(value, root_rank, name=None, process_set=global_process_set):
    """``root_rank``'s value, as a NumPy array."""
    return _array_collectives.broadcast(_array(value), root_rank, name, process_set)


def reducescatter(value, name=None, op=basics.Average, process_set=global_process_set):
    """This rank's rows of the reduction."""
    return _array_collectives.reducescatter(_array(value), name=name, op=op, process_set=process_set)


def broadcast_global_variables(root_rank, model=None, process_set=global_process_set):
    """Gives a model and its optimizer the values that they have on ``root_rank``.

    Random seeds, as of dropout, and metrics stay each rank's own.

    Parameters
    ----------
    root_rank : int
        A rank of the job, member of ``process_set``.
    model : keras.Model
        Built; its optimizer's variables too, if it has one that is built.

    Raises
    ------
    ValueError
        No model was given: Keras 3 knows no global variables.
    """
    if model is None:
        raise ValueError(
            "broadcast_global_variables: Keras 3 has no global variables; pass model=, or use "
            "callbacks.BroadcastGlobalVariablesCallback(root_rank)"
        )
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.weights, *(() if optimizer is None else optimizer.variables)]
    broadcast_variables(variables, root_rank, process_set)


def broadcast_variables(variables, root_rank, process_set=global_process_set):
    """Gives variables of Keras the values that they have on ``root_rank``."""
    values = [np.array(keras.ops.convert_to_numpy(each.value)) for each in variables]
    handles = [
        _array_collectives.broadcast_async_(value, root_rank, None, process_set) for value in values
    ]
    for variable, value, handle in zip(variables, values, handles):
        synchronize(handle)
        variable.assign(value)


@contextlib.contextmanager
def _own_file(filepath):
    """The file, for this rank alone: Keras 3.4 and 3.5 unpack weights beside it, all ranks in one place."""
    if keras.__version__.split(".")[:2] not in (["3", "4"], ["3", "5"]) or not os.path.isfile(filepath):
        yield filepath
        return
    with tempfile.TemporaryDirectory() as folder:
        yield shutil.copy(filepath, folder)


def load_model(
    filepath,
    custom_optimizers=None,
    custom_objects=None,
    compression=Compression.none,
    legacy_opts=None,
):
    """A model from a file, whose optimizer is distributed and goes on from the state that it had there.

    Parameters
    ----------
    filepath : path
        What ``model.save`` has written, with rueda or without.
    custom_optimizers : list of type, optional
        Optimizers that Keras does not know by themselves.
    custom_objects : dict, optional
        As in ``keras.models.load_model``. Layers of `rueda.tensorflow.SyncBatchNormalization` are known without.
    compression : type
        One of `Compression`.
    legacy_opts : bool, optional
        Horovod's; Keras 3 has no legacy optimizers.
    """
    objects = {**_framework.own_layers(), **{each.__name__: each for each in custom_optimizers or ()}}
    objects.update(custom_objects or {})
    with _own_file(filepath) as path:
        model = keras.models.load_model(path, custom_objects=objects or None)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
