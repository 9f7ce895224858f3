"""One call of any scheme: from the tensors and options of a public function to the framework's."""

import os

import numpy as np

from rueda._runtime import runtime
from rueda.attention import _groups
from rueda.attention._plans import Spec, plan_of
from rueda.common.process_sets import global_process_set


class AttentionWork:
    """An attention under way (``async_op=True``). Its tensors are its own until it has ended.

    ``wait()`` gives what the function would have returned. All ranks start their calls in the same
    order; they may wait in any.
    """

    def __init__(self, call, result):
        self._call, self._result = call, result

    def done(self):
        """Whether it has ended, well or not."""
        return self._call.poll()

    def wait(self, timeout=None):
        """The result; raises how it failed, or DeadlineExceeded after ``timeout`` seconds: it goes on."""
        self._call.wait(timeout)
        return self._result

    def abort(self):
        """Ends it on this rank soon: `wait` raises. Its peers get an error when this rank leaves."""
        self._call.abort()


def framework(tensor):
    """The module that works on it. PyTorch is imported for its own tensors only."""
    if isinstance(tensor, np.ndarray):
        from rueda.attention import _numpy

        return _numpy
    if hasattr(tensor, "requires_grad"):
        from rueda.attention import _torch

        return _torch
    raise ValueError(f"expected a NumPy array or a PyTorch tensor, got {type(tensor).__name__}")


def length_of(tokens, process_set):
    """Tokens of all ranks together."""
    if process_set.size() == 1:
        return tokens
    from rueda import numpy as hvd

    mine = np.array([tokens], np.int64)
    return int(hvd.allreduce(mine, op=hvd.Sum, process_set=process_set)[0])


def _check(q, k, v):
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError("q, k, v must be (batch, tokens, heads, head_dim)")
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} queries and {k.shape[1]} keys: all must be of the same tokens of one sequence "
            "(attention between two sequences is not supported)"
        )
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"q, k, v have different dtypes: {q.dtype}, {k.dtype}, {v.dtype}")


def threads_of(asked, process_set):
    """0 lets the library choose, which for a local operation does not know the job."""
    if asked or process_set is not _groups.local or not runtime.is_initialized():
        return asked
    return max(1, (os.cpu_count() or 1) // runtime.place.local_size)


def plan_for(q_shape, kv_heads, dtype, length, process_set, options):
    """The plan of a call on this rank, whose tokens must be those of the layout."""
    batch, tokens, heads, head_dim = q_shape
    if length is None:
        length = length_of(tokens, process_set)
    plan = plan_of(
        Spec(batch, length, heads, kv_heads, head_dim, dtype, **options), process_set
    )
    if plan.tokens != tokens:
        raise ValueError(
            f"this rank has {tokens} tokens, the {plan.spec.layout} layout of {length} tokens gives "
            f"it {plan.tokens}; use shard_sequence with the same layout"
        )
    return plan


def attend(q, k, v, *, process_set=None, length=None, return_lse=False, threads=0,
           window_size=(-1, -1), softmax_scale=None, compression=None, rotate="auto",
           chunk_tokens=None, qkv_format="bshd", async_op=False, **spec):  # fmt: skip
    if process_set is None:
        process_set = global_process_set
    module = framework(q)
    heads_first = qkv_format == "bhsd"
    if heads_first:
        q, k, v = (module.heads_second(x) for x in (q, k, v))
    elif qkv_format != "bshd":
        raise ValueError(f"qkv_format is {qkv_format!r}, expected 'bshd' or 'bhsd'")
    _check(q, k, v)
    left, right = window_size
    options = {
        "rotate_forward": rotate,
        "rotate_backward": rotate,
        "window": (left, right),
        "scale": softmax_scale or 0.0,
        "chunk_tokens": chunk_tokens or 0,
        "kv_wire": compression,
        **spec,
    }
    if module.is_compiling():
        if async_op:
            raise ValueError("async_op is not possible under torch.compile")
        out, lse = module.graph.attention(q, k, v, length, process_set, threads, options)
        call = None
    else:
        plan = plan_for(q.shape, k.shape[2], module.name_of(q), length, process_set, options)
        out, lse, call = module.attention(
            plan, q, k, v, threads_of(threads, process_set), not async_op
        )
    if heads_first:
        out = module.heads_second(out)
    result = (out, lse) if return_lse else out
    return AttentionWork(call, result) if async_op else result
