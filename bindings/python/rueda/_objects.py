"""Python objects as bytes: the only place where pickle is used, on bytes from the job's own ranks.

A rank that cannot pickle its object still takes part, with a size that no object has, so that its
peers raise instead of waiting for it.
"""

import collections.abc
import io
import pickle

from rueda._array_collectives import allgather, broadcast
from rueda._numpy import np
from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.common.process_sets import global_process_set

_FAILED = -1


def _pickle(obj):
    try:
        import cloudpickle as pickler  # also takes functions and classes of __main__
    except ImportError:
        pickler = pickle
    return pickler.dumps(obj, protocol=4)


def broadcast_bytes(make, root_rank, name, process_set):
    """Every rank returns the bytes that ``make()`` gives on ``root_rank``."""
    data, failure = b"", None
    if basics.rank() == root_rank:
        try:
            data = make()
        except Exception as error:
            failure = error
    size = np.array([_FAILED if failure else len(data)], np.int64)
    size = broadcast(size, root_rank, name and name + ".sz", process_set)[0]
    if failure:
        raise failure
    if size == _FAILED:
        raise HorovodInternalError(
            f"broadcast_object: rank {root_rank} could not pickle its object; its error says why"
        )
    content = np.frombuffer(data, np.uint8) if data else np.empty(size, np.uint8)
    return broadcast(content, root_rank, name and name + ".t", process_set).tobytes()


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """Returns on every rank the object that ``root_rank`` passed in (it travels pickled)."""
    data = broadcast_bytes(lambda: _pickle(obj), root_rank, name, process_set)
    return obj if basics.rank() == root_rank else pickle.loads(data)


def allgather_object(obj, name=None, process_set=global_process_set):
    """Returns the list of all ranks' objects in rank order (they travel pickled)."""
    data, failure = b"", None
    try:
        data = _pickle(obj)
    except Exception as error:
        failure = error
    mine = np.array([_FAILED if failure else len(data)], np.int64)
    sizes = allgather(mine, name and name + ".sz", process_set)
    if failure:
        raise failure
    failed = [rank for rank, size in zip(process_set.ranks, sizes) if size == _FAILED]
    if failed:
        raise HorovodInternalError(
            f"allgather_object: ranks {failed} could not pickle their object; their errors say why"
        )
    content = np.frombuffer(data, np.uint8)
    stream = io.BytesIO(allgather(content, name and name + ".t", process_set).tobytes())
    return [pickle.loads(stream.read(int(size))) for size in sizes]


def named(params):
    """(name, tensor) pairs of what ``broadcast_parameters`` takes, in an order all ranks share."""
    if hasattr(params, "items"):
        return sorted(params.items())
    if isinstance(params, list):
        return [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    pairs = list(params) if isinstance(params, collections.abc.Iterable) else [None]
    if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return pairs
    raise ValueError(
        f"invalid params of type {type(params).__name__}: expected a dict, (name, tensor) pairs, or a list"
    )


basics.gather_objects = allgather_object
