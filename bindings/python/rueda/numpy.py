"""Collectives on NumPy arrays, with the names and argument order of Horovod's PyTorch functions.

>>> import numpy as np, rueda as hvd
>>> hvd.init()
>>> hvd.allreduce(np.arange(4.0), op=hvd.Sum)

Functions without a trailing underscore leave their input alone and return a new array; those with
one work in place and need a writable C-contiguous array. ``*_async`` return a handle for `poll` and
`synchronize`; until then the arrays belong to rueda. Without a name, the n-th unnamed operation of
a kind meets the n-th of every other rank.

Errors: ValueError when the call is wrong on this rank, HorovodInternalError when ranks disagree or
a rank is lost, `DeadlineExceeded` when a given timeout passes.
"""

import math

import numpy as np

from rueda import _collectives, _ffi, _objects
from rueda._collectives import join
from rueda._ffi import ALLREDUCE, AVERAGE, BROADCAST
from rueda._heap import shared_bytes
from rueda._memory import bytes_view
from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.basics import *  # noqa: F401,F403
from rueda.common.basics import Average
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, RankLostError
from rueda.common.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_included,
    remove_process_set,
)

__all__ = basics.__all__ + [
    "Compression",
    "DeadlineExceeded",
    "HorovodInternalError",
    "RankLostError",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_parameters",
    "empty",
    "empty_like",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "process_set_included",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "send",
    "send_async",
    "synchronize",
    "zeros",
]

_DTYPES = {
    "bool": _ffi.BOOL,
    "uint8": _ffi.UINT8,
    "int8": _ffi.INT8,
    "int16": _ffi.INT16,
    "int32": _ffi.INT32,
    "int64": _ffi.INT64,
    "float16": _ffi.FLOAT16,
    # Of the ml_dtypes package; the 8-bit ones are moved and not reduced.
    "bfloat16": _ffi.BFLOAT16,
    "float8_e4m3fn": _ffi.FLOAT8_E4M3FN,
    "float8_e5m2": _ffi.FLOAT8_E5M2,
    "float32": _ffi.FLOAT32,
    "float64": _ffi.FLOAT64,
}


class _Arrays:
    """The adapter for numpy.ndarray."""

    @staticmethod
    def describe(array):
        code = _DTYPES.get(array.dtype.name)
        if code is None or not array.dtype.isnative:
            raise ValueError(f"Array dtype {array.dtype.str} ({array.dtype}) is not supported.")
        return code

    @staticmethod
    def shape(array):
        return array.shape

    @staticmethod
    def address(array):
        return array.ctypes.data

    @staticmethod
    def packed(array):
        return array.flags.c_contiguous

    @staticmethod
    def pack(array):
        return np.asarray(array, order="C")

    @staticmethod
    def empty(shape, like):
        return np.empty(shape, like.dtype)

    @staticmethod
    def adopt(address, shape, like, owner):
        nbytes = int(np.prod(shape, dtype=np.int64)) * like.itemsize
        if nbytes == 0:
            return np.empty(shape, like.dtype)
        return bytes_view(address, nbytes, owner).view(like.dtype).reshape(shape)

    @staticmethod
    def splits(counts):
        return np.array(counts, np.int32)

    @staticmethod
    def place(array):
        return -1, None


_all = _collectives.Collectives(_Arrays)


class _NoneCompressor:
    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _CastCompressor:
    """Sends floats as a 16-bit type; other types as they are."""

    @staticmethod
    def wire_dtype():
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor):
        tensor = np.asarray(tensor)
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype(cls.wire_dtype()), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tensor.astype(ctx)


class _FP16Compressor(_CastCompressor):
    @staticmethod
    def wire_dtype():
        return np.float16


class _BF16Compressor(_CastCompressor):
    @staticmethod
    def wire_dtype():
        import ml_dtypes  # NumPy itself has no bfloat16

        return ml_dtypes.bfloat16


class Compression:
    """What travels: ``none`` the array's own type, ``fp16`` and ``bf16`` a 16-bit float type."""

    none = _NoneCompressor
    fp16 = _FP16Compressor
    bf16 = _BF16Compressor


def empty(shape, dtype=float):
    """A C-ordered array in memory that this host's ranks share; all zeros.

    Collectives work on it without a copy. It may be used like any array and lives as long as any
    view of it, also after `shutdown`.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : data-type
        Any that holds no Python objects.

    Raises
    ------
    MemoryError
        The shared memory is used up; says how much is in use (``RUEDA_HEAP_BYTES``).
    HorovodInternalError
        Not initialised.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError(f"shared memory cannot hold Python objects (dtype {dtype})")
    runtime.require_running()
    shape = np.broadcast_to(np.False_, shape).shape  # NumPy's own checks, no memory
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    return shared_bytes(nbytes).view(dtype).reshape(shape)


zeros = empty


def empty_like(prototype, dtype=None):
    """`empty` with the shape and, unless ``dtype`` is given, the type of ``prototype``."""
    prototype = np.asarray(prototype)
    return empty(prototype.shape, prototype.dtype if dtype is None else dtype)


def _in_place(array):
    if not isinstance(array, np.ndarray):
        raise ValueError(f"an operation in place needs a numpy.ndarray, got {type(array).__name__}")
    if not array.flags.writeable:
        raise ValueError("an operation in place needs a writable array")
    return array


def _run_again(kind, name, array, in_place, *rest):
    """The result of a named operation that came before in this form; None: take the ordinary way.

    ``rest``: the fields of `Operation` that `Collectives` gives for this kind, in its order.
    """
    if type(array) is not np.ndarray or type(name) is not str:
        return None
    prepared = runtime.take((kind, name, array.dtype, array.shape, *rest))
    if prepared is None:
        return None
    flags = array.flags
    if not flags.c_contiguous or (in_place and not flags.writeable):
        prepared.put_back()
        return None
    output = array if in_place else np.empty(array.shape, array.dtype)
    addresses = array.ctypes.data, output.ctypes.data
    return output if runtime.run(prepared, *addresses, (array, output)) else None


def poll(handle):
    """Whether the operation behind a handle has ended. Never blocks."""
    return runtime.poll(handle)


def synchronize(handle, timeout=None):
    """Waits for an operation; returns its result, or raises how it failed.

    Parameters
    ----------
    handle : int
        From an ``*_async`` function. None is returned for one that has been synchronised before.
    timeout : float, optional
        Seconds after which to raise `DeadlineExceeded`. The operation goes on; synchronise again.
    """
    return runtime.synchronize(handle, timeout)


def allreduce_async(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts `allreduce`; returns a handle."""
    return _all.allreduce(
        [np.asarray(tensor)],
        False,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
    )


def allreduce(
    tensor,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Reduces an array element by element over all ranks; every rank gets the same result.

    Parameters
    ----------
    tensor : array_like
        Same shape and dtype on every rank.
    average : bool, optional
        Deprecated: True is ``op=Average``, False is ``op=Sum``.
    op : int, optional
        Average (default), Sum, Adasum, Min, Max or Product. Average of integers truncates toward
        zero.
    prescale_factor, postscale_factor : float
        Multiply the input before, the result after the reduction.
    """
    if average is None and compression is _NoneCompressor:
        reduce = AVERAGE if op is None else op
        scales = prescale_factor, postscale_factor
        key = getattr(process_set, "key", None)
        result = _run_again(ALLREDUCE, name, tensor, False, reduce, *scales, key)
        if result is not None:
            return result
    wire, ctx = compression.compress(np.asarray(tensor))
    handle = allreduce_async(
        wire, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(synchronize(handle), ctx)


def allreduce_async_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts `allreduce_`; returns a handle."""
    return _all.allreduce(
        [_in_place(tensor)],
        True,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
    )


def allreduce_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`allreduce` in place; returns the same array."""
    if average is None:
        reduce = AVERAGE if op is None else op
        scales = prescale_factor, postscale_factor
        key = getattr(process_set, "key", None)
        if _run_again(ALLREDUCE, name, tensor, True, reduce, *scales, key) is not None:
            return tensor
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_async(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts `grouped_allreduce`; returns a handle."""
    return _all.allreduce(
        map(np.asarray, tensors),
        False,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
    )


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`allreduce` of several arrays as one operation; returns a tuple."""
    pairs = [compression.compress(np.asarray(tensor)) for tensor in tensors]
    handle = grouped_allreduce_async(
        [wire for wire, _ in pairs],
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
    )
    return tuple(
        compression.decompress(output, ctx) for output, (_, ctx) in zip(synchronize(handle), pairs)
    )


def grouped_allreduce_async_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Starts `grouped_allreduce_`; returns a handle."""
    return _all.allreduce(
        map(_in_place, tensors),
        True,
        name,
        average,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
    )


def grouped_allreduce_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`grouped_allreduce` in place; returns a tuple of the same arrays."""
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Starts `allgather`; returns a handle."""
    return _all.allgather([np.asarray(tensor)], name, process_set, False)


def allgather(tensor, name=None, process_set=global_process_set):
    """Concatenates the ranks' arrays along dimension 0 in rank order; first extents may differ."""
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Starts `grouped_allgather`; returns a handle."""
    return _all.allgather(map(np.asarray, tensors), name, process_set, True)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """`allgather` of several arrays as one operation; returns a tuple."""
    return synchronize(grouped_allgather_async(tensors, name, process_set))


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts `broadcast`; returns a handle."""
    return _all.broadcast(np.asarray(tensor), False, root_rank, name, process_set)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Returns on every rank what ``root_rank`` passed in; shapes and dtypes must be equal."""
    key = getattr(process_set, "key", None)
    result = _run_again(BROADCAST, name, tensor, False, root_rank, key)
    if result is not None:
        return result
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts `broadcast_`; returns a handle."""
    return _all.broadcast(_in_place(tensor), True, root_rank, name, process_set)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """`broadcast` in place; returns the same array."""
    key = getattr(process_set, "key", None)
    if _run_again(BROADCAST, name, tensor, True, root_rank, key) is not None:
        return tensor
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Starts `alltoall`; returns a handle whose result is always ``(output, received_splits)``."""
    if splits is not None:
        splits = np.asarray(splits)
        if splits.ndim != 1 or (splits.size and splits.dtype.kind not in "iu"):
            raise ValueError("alltoall: splits must be a one-dimensional list of whole numbers")
        splits = [int(rows) for rows in splits]
    return _all.alltoall(np.asarray(tensor), splits, name, process_set)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends the first ``splits[0]`` rows to rank 0, the next ``splits[1]`` to rank 1, and so on.

    Returns the received rows in rank order; with ``splits`` given, also how many came from each
    rank (int32). Without, every rank gets an equal part.
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def reducescatter_async(
    tensor,
    name=None,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Starts `reducescatter`; returns a handle."""
    return _all.reducescatter(
        [np.asarray(tensor)], name, op, prescale_factor, postscale_factor, process_set, False
    )


def reducescatter(
    tensor,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Reduces (Average or Sum) over all ranks and returns this rank's rows of the result.

    Rows are cut evenly; the first ``rows % size()`` ranks get one more.
    """
    wire, ctx = compression.compress(np.asarray(tensor))
    handle = reducescatter_async(wire, name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(synchronize(handle), ctx)


def grouped_reducescatter_async(
    tensors,
    name=None,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Starts `grouped_reducescatter`; returns a handle."""
    return _all.reducescatter(
        map(np.asarray, tensors), name, op, prescale_factor, postscale_factor, process_set, True
    )


def grouped_reducescatter(
    tensors,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """`reducescatter` of several arrays as one operation; returns a tuple."""
    pairs = [compression.compress(np.asarray(tensor)) for tensor in tensors]
    handle = grouped_reducescatter_async(
        [wire for wire, _ in pairs], name, op, process_set, prescale_factor, postscale_factor
    )
    return tuple(
        compression.decompress(output, ctx) for output, (_, ctx) in zip(synchronize(handle), pairs)
    )


def send_async(tensor, dst, tag=0):
    """Starts `send`; returns a handle."""
    return _all.send(np.asarray(tensor), dst, tag)


def send(tensor, dst, tag=0):
    """Sends an array to rank ``dst``; matched with `recv` by (ranks, tag) in order."""
    synchronize(send_async(tensor, dst, tag))


def recv_async(tensor, src, tag=0):
    """Starts `recv`; returns a handle."""
    return _all.recv(_in_place(tensor), src, tag)


def recv(tensor, src, tag=0):
    """Receives from rank ``src`` into an array of the sender's size and dtype; returns it."""
    return synchronize(recv_async(tensor, src, tag))


def barrier(process_set=global_process_set):
    """Returns once every rank of the set has called it."""
    _collectives.barrier(process_set)


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Broadcasts arrays in place: a dict of arrays, or a list of arrays or (name, array) pairs."""
    for handle in [
        broadcast_async_(array, root_rank, name, process_set)
        for name, array in _objects.named(params)
    ]:
        synchronize(handle)


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """Returns on every rank the object that ``root_rank`` passed in (it travels pickled)."""
    return _objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj, name=None, process_set=global_process_set):
    """Returns the list of all ranks' objects in rank order (they travel pickled)."""
    return _objects.allgather_object(obj, name, process_set)
