"""Collectives on tensors of TensorFlow, eagerly and inside ``tf.function``, with Horovod's arguments."""

import tensorflow as tf

from rueda import _ffi
from rueda._collectives import reduce_op
from rueda._collectives import reduce_op as handle_average_backwards_compatibility  # noqa: F401
from rueda._compression import compressed_group
from rueda._frameworks import check_name, replaced
from rueda._numbers import whole_number
from rueda._runtime import runtime
from rueda._waiting import join  # noqa: F401
from rueda.common import basics as _basics  # noqa: F401
from rueda.common.basics import *  # noqa: F401,F403
from rueda.common.basics import Adasum, Average, Sum
from rueda.common.exceptions import HorovodInternalError  # noqa: F401
from rueda.common.process_sets import (  # noqa: F401
    ProcessSet,
    add_process_set,
    global_process_set,
    id_for_operation,
    remove_process_set,
)
from rueda.common.util import num_rank_is_power_2 as check_num_rank_power_of_2  # noqa: F401
from rueda.tensorflow import _library, _ops
from rueda.tensorflow._errors import arguments, wrong_argument
from rueda.tensorflow.compression import Compression


def _spec(kind, process_set, name, **fields):
    runtime.require_running()
    with arguments():
        check_name(name)
        set_id = id_for_operation(process_set)
    return _ops.Spec(kind, process_set=set_id, name=name, **fields)


def _scales(prescale_factor, postscale_factor):
    with arguments():
        return {"prescale": float(prescale_factor), "postscale": float(postscale_factor)}


def _group(tensors, spec, compression=Compression.none):
    if not tensors:
        return []

    def run(wires):
        return _ops.collective(wires, spec)

    return list(compressed_group(run, compression, [tf.convert_to_tensor(each) for each in tensors]))


def _slices(tensor, op, name, scales, process_set):
    """Of an IndexedSlices: what all ranks have, one behind the other."""
    if op not in (Average, Sum):
        raise NotImplementedError("IndexedSlices can be added and averaged; pass sparse_as_dense, or tf.convert_to_tensor")
    if scales != {"prescale": 1.0, "postscale": 1.0}:
        raise NotImplementedError("IndexedSlices cannot be scaled; use tf.convert_to_tensor first")
    values, indices = grouped_allgather(
        [tensor.values, tensor.indices], name=name, process_set=process_set
    )
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, tensor.dense_shape)


def allreduce(
    tensor,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
    process_set=global_process_set,
    ignore_name_scope=False,
):
    """The reduction of a tensor over all ranks.

    Parameters
    ----------
    tensor : tf.Tensor, tf.Variable or tf.IndexedSlices
        Of equal shape and dtype on all ranks. Slices are gathered; they can be added and averaged.
    average : bool, optional
        Horovod's older word for ``op``.
    compression : type
        One of `Compression`.
    op : int, optional
        ``Average`` (without one), ``Sum``, ``Adasum``, ``Min``, ``Max``, ``Product``. Derivatives are
        there for the first two.
    prescale_factor, postscale_factor : float
        Applied before and after the reduction.
    name : str, optional
        Ranks match operations by it. Without one, eager operations meet in the order of their starts,
        and in a graph the place in the program counts.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    device_dense, device_sparse, ignore_name_scope
        Horovod's.

    Raises
    ------
    tf.errors.FailedPreconditionError
        Ranks disagree; every rank gets it, both sides are named.
    tf.errors.InvalidArgumentError
        This rank's tensor is wrong, or another argument; the latter is a ValueError, too.
    tf.errors.AbortedError
        A rank was lost; it is named.
    """
    with arguments():
        op = reduce_op(op, average)
    scales = _scales(prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _slices(tensor, op, name, scales, process_set)
    spec = _spec(_ffi.ALLREDUCE, process_set, name, op=op, **scales)
    return _group([tensor], spec, compression)[0]


def grouped_allreduce(
    tensors,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
    ignore_name_scope=False,
    name=None,
):
    """`allreduce` of several tensors, ready together or not at all; returns a list."""
    with arguments():
        op = reduce_op(op, average)
    scales = _scales(prescale_factor, postscale_factor)
    results = list(tensors)
    dense = [i for i, each in enumerate(results) if not isinstance(each, tf.IndexedSlices)]
    spec = _spec(_ffi.ALLREDUCE, process_set, name, op=op, **scales)
    reduced = _group([results[i] for i in dense], spec, compression)
    for i, each in enumerate(results):
        if isinstance(each, tf.IndexedSlices):
            results[i] = _slices(each, op, name and f"{name}.{i}", scales, process_set)
    return replaced(results, dense, reduced)


def allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set):
    """The rows of all ranks, in rank order; first extents may differ."""
    return _group([tensor], _spec(_ffi.ALLGATHER, process_set, name))[0]


def grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set):
    """`allgather` of several tensors, ready together or not at all; returns a list."""
    return _group(tensors, _spec(_ffi.ALLGATHER, process_set, name))


def checked_root(root_rank, process_set):
    """The root, a rank of the job, as an int."""
    runtime.require_running()
    with arguments():
        root_rank = whole_number("root_rank", root_rank)
        ranks = process_set.ranks
    if root_rank not in ranks:
        raise wrong_argument(f"broadcast: root_rank {root_rank} is not one of {ranks}")
    return root_rank


def _from_root(kind, root_rank, name, process_set):
    return _spec(kind, process_set, name, root=checked_root(root_rank, process_set))


def broadcast(
    tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set
):
    """What ``root_rank``, a rank of the job, has; all ranks give a tensor of the same shape."""
    return _group([tensor], _from_root(_ffi.BROADCAST, root_rank, name, process_set))[0]


def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """Gives variables the values that they have on ``root_rank``, sent as one group; returns them."""
    variables = list(variables)
    values = _group(variables, _from_root(_ffi.BROADCAST, root_rank, name, process_set))
    for variable, value in zip(variables, values):
        variable.assign(value)
    return variables


def alltoall(
    tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set
):
    """Sends rows to every rank; returns what comes, in rank order.

    Parameters
    ----------
    tensor : tf.Tensor
    splits : tensor of integers, optional
        Rows for each rank. Without it the rows are sent in equal parts.

    Returns
    -------
    tf.Tensor, or with ``splits`` a pair
        What comes, and how many rows came from each rank (int32).
    """
    result, received = _ops.alltoall(
        tf.convert_to_tensor(tensor), splits, _spec(_ffi.ALLTOALL, process_set, name)
    )
    return result if splits is None else (result, received)


def _reducescatter_spec(op, prescale_factor, postscale_factor, name, process_set):
    with arguments():
        op = reduce_op(op, None)
    if op == Adasum:
        raise NotImplementedError("reducescatter: op=Adasum is not supported")
    scales = _scales(prescale_factor, postscale_factor)
    return _spec(_ffi.REDUCESCATTER, process_set, name, op=op, **scales)


def reducescatter(
    tensor,
    device_dense="",
    compression=Compression.none,
    op=Average,
    name=None,
    process_set=global_process_set,
    ignore_name_scope=False,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """This rank's rows of the reduction; the first ranks get one more where they cannot be divided."""
    spec = _reducescatter_spec(op, prescale_factor, postscale_factor, name, process_set)
    return _group([tensor], spec, compression)[0]


def grouped_reducescatter(
    tensors,
    device_dense="",
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
):
    """`reducescatter` of several tensors, ready together or not at all; returns a list."""
    spec = _reducescatter_spec(op, prescale_factor, postscale_factor, name, process_set)
    return _group(tensors, spec, compression)


# Places that are looked up when a program runs, as int32 scalars.


def rank_op(name=None):
    """`rank`, when the program runs."""
    return _library.place_op(_library.RANK)


def local_rank_op(name=None):
    """`local_rank`, when the program runs."""
    return _library.place_op(_library.LOCAL_RANK)


def size_op(process_set_id=0, name=None):
    """The number of a process set's ranks, when the program runs."""
    return _library.place_op(_library.SIZE, process_set_id)


def local_size_op(name=None):
    """`local_size`, when the program runs."""
    return _library.place_op(_library.LOCAL_SIZE)


def process_set_included_op(process_set_id=0, name=None):
    """1 where this rank is in the process set, else 0, when the program runs."""
    return _library.place_op(_library.IS_INCLUDED, process_set_id)
