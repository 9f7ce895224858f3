"""NumPy arrays: forward only."""

import numpy as np

from rueda import numpy as hvd
from rueda.attention import _calls
from rueda.attention._layouts import position_ids

graph = None
EQUAL_SHARES = False  # without a length the ranks are asked


def is_compiling():
    return False


def name_of(array):
    return array.dtype.name


def heads_second(array):
    return np.swapaxes(array, 1, 2)


def options_of(q, options):
    return options


def attention(plan, q, k, v, threads, save, wait, process_set):
    q, k, v = (np.ascontiguousarray(x) for x in (q, k, v))
    out = np.empty_like(q)
    lse = np.empty((q.shape[0], q.shape[2], q.shape[1]), np.float32)
    memory = [x.ctypes.data for x in (q, k, v, out, lse)]
    call, _ = _calls.start_forward(plan, threads, *memory, (q, k, v, out, lse))
    if wait:
        call.wait()
    return out, lse, call


def with_local_attention(*_):
    raise ValueError("local_attention works on PyTorch tensors and JAX arrays; leave it out for NumPy arrays")


def take(full, layout, axis, process_set):
    positions = position_ids(full.shape[axis], layout, process_set=process_set)
    return np.ascontiguousarray(np.take(full, positions, axis))


def put_together(shard, positions, own, length, axis, process_set):
    rows = np.ascontiguousarray(np.moveaxis(shard, axis, 0))
    gathered = hvd.allgather(rows, process_set=process_set)
    whole = np.empty((length, *rows.shape[1:]), rows.dtype)
    whole[positions] = gathered
    return np.ascontiguousarray(np.moveaxis(whole, 0, axis))


def of_sinks(sinks, out, lse):
    """The partial result of scores without a value."""
    return np.zeros_like(out), np.broadcast_to(np.asarray(sinks, lse.dtype)[:, None], lse.shape)


def merge(out, lse, out2, lse2):
    top = np.maximum(lse, lse2)
    safe = np.where(np.isinf(top), np.float32(0), top)
    a, b = np.exp(lse - safe), np.exp(lse2 - safe)
    total = a + b
    with np.errstate(divide="ignore"):
        merged = np.where(total > 0, safe + np.log(total), -np.inf).astype(np.float32)
    total = np.where(total > 0, total, 1)
    weights = [np.swapaxes(x / total, 1, 2)[..., None] for x in (a, b)]
    return (out * weights[0] + out2 * weights[1]).astype(out.dtype), merged
