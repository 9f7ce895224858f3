"""One call of any scheme: from the tensors and options of a public function to the framework's."""

import numpy as np

from rueda.attention import _groups
from rueda.attention._calls import refuse, told
from rueda.attention._lengths import plan_for, refuse_lengths, threads_of
from rueda.attention._plans import Spec, slopes_of, softcap_of


class AttentionRequest:
    """An attention under way (``async_op=True``). Its tensors are its own until it has ended.

    ``wait()`` gives what the function would have returned. All ranks start their calls in the same
    order; they may wait in any.
    """

    def __init__(self, call, result):
        self._call, self._result = call, result

    def done(self):
        """Whether it has ended, well or not."""
        return self._call.done()

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
    if _is_torch(tensor):
        from rueda.attention import _torch

        return _torch
    if hasattr(tensor, "aval"):
        from rueda.attention import _jax

        return _jax
    raise ValueError(f"expected an array of NumPy or JAX or a PyTorch tensor, got {type(tensor).__name__}")


def _is_torch(tensor):
    return hasattr(tensor, "requires_grad")


def require_alike(q, k, v):
    """ValueError for those of different frameworks or devices."""
    for other in (k, v):  # plain comparisons: torch.compile reads them too
        framework(other)
        if isinstance(other, np.ndarray) != isinstance(q, np.ndarray) or _is_torch(other) != _is_torch(q):
            raise ValueError("q, k, v are of different frameworks: give all as arrays or tensors of one")
        if _is_torch(q) and q.device != other.device:
            raise ValueError(f"q, k, v are on different devices: {q.device} and {other.device}")


def _check(q, k, v):
    require_alike(q, k, v)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError(
            f"q, k, v must be (batch, tokens, heads, head_dim), got {q.ndim}, {k.ndim} and {v.ndim} dimensions"
        )
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; k and v must be "
            "alike, and have q's batch and head_dim"
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"q, k, v have different dtypes: {q.dtype}, {k.dtype}, {v.dtype}; make them one, as in v.to(q.dtype)")


# Said by the tensors, or by an option of another name.
_OF_THE_TENSORS = "batch heads kv_heads head_dim dtype window scale kv_wire softcap alibi_slopes".split()


def _check_options(window_size, softmax_scale, threads, save, spec):
    for name in spec:
        if name in Spec._fields and name not in _OF_THE_TENSORS:
            continue
        raise TypeError(
            f"attention has no option {name!r}; there are causal, window_size, layout, softmax_scale, "
            "process_set, length, key_length, return_lse, qkv_format, async_op, chunk_tokens, threads, rotate, "
            "compression, softcap, alibi_slopes, sinks, save"
        )
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"window_size is {window_size!r}, expected (left, right) in tokens; -1: no limit")
    if not isinstance(threads, int) or threads < 0:
        raise ValueError(f"threads is {threads!r}, expected how many compute; 0: this host's share")
    if save not in (None, "qkv", "out+lse"):
        raise ValueError(
            f"save is {save!r}, expected 'qkv' (backward computes out and lse again), 'out+lse' (checkpointing does not) or None"
        )
    if softmax_scale is not None and not softmax_scale:
        raise ValueError("softmax_scale is 0: every key would count alike; leave it out for head_dim ** -0.5")


def _check_sinks(sinks, heads, async_op):
    if getattr(sinks, "ndim", 1) != 1 or not hasattr(sinks, "__len__") or len(sinks) != heads:
        raise ValueError(f"sinks is {sinks!r}, expected a score for each of {heads} query heads")
    if async_op:
        raise ValueError("sinks come into what has ended: leave async_op out, or sinks, and merge_attention afterwards")


def attend(q, k, v, *, process_set=None, length=None, return_lse=False, threads=0, qkv_format="bshd", async_op=False,
           save=None, sinks=None, **options):  # fmt: skip
    process_set = _groups.given(process_set)
    _groups.require(process_set)
    module = framework(q)
    own = length, threads, qkv_format, save, sinks, async_op
    if module.is_compiling():
        q, k, v, length, options = _prepared(module, q, k, v, process_set, *own, **options)
        out, lse = module.graph.attention(q, k, v, length, process_set, threads, save, options)
        call = None
    else:
        refuses = None if module.EQUAL_SHARES else refuse  # shapes that are traced are no call yet
        with told(process_set, refuse_lengths if refuses and length is None else refuses):
            q, k, v, length, options = _prepared(module, q, k, v, process_set, *own, **options)
        with told(process_set, refuses):
            plan = plan_for(q.shape, k.shape, module.name_of(q), length, process_set, options)
        out, lse, call = module.attention(
            plan, q, k, v, threads_of(threads, process_set), save, not async_op, process_set
        )
    if sinks is not None:
        out, lse = module.merge(out, lse, *module.of_sinks(sinks, out, lse))
    if qkv_format == "bhsd":
        out = module.heads_second(out)
    result = (out, lse) if return_lse else out
    return AttentionRequest(call, result) if async_op else result


def _prepared(module, q, k, v, process_set, length, threads, qkv_format, save, sinks, async_op, *, window_size=(-1, -1),
              softmax_scale=None, compression=None, rotate="auto", chunk_tokens=None, key_length=None, softcap=0.0,
              alibi_slopes=None, **spec):  # fmt: skip
    """(q, k, v, length, a plan's options) of a call whose arguments are right."""
    if qkv_format == "bhsd":
        q, k, v = (module.heads_second(x) for x in (q, k, v))
    elif qkv_format != "bshd":
        raise ValueError(f"qkv_format is {qkv_format!r}, expected 'bshd' or 'bhsd'")
    _check(q, k, v)
    if module.is_compiling() and hasattr(alibi_slopes, "tolist"):
        raise ValueError("under torch.compile alibi_slopes is a tuple of numbers, as in tuple(slopes.tolist())")
    if module.is_compiling() and async_op:
        raise ValueError("async_op is not possible under torch.compile")
    _check_options(window_size, softmax_scale, threads, save, spec)
    if sinks is not None:
        _check_sinks(sinks, q.shape[2], async_op)
    left, right = window_size
    options = {
        "rotate_forward": rotate,
        "rotate_backward": rotate,
        "window": (left, right),
        "scale": softmax_scale or 0.0,
        "chunk_tokens": chunk_tokens or 0,
        "kv_wire": compression,
        "key_length": key_length,
        "softcap": softcap_of(softcap),
        "alibi_slopes": slopes_of(alibi_slopes, q.shape[0], q.shape[2]),
        **spec,
    }
    options = module.options_of(q, options)
    if length is None and module.EQUAL_SHARES:
        length = q.shape[1] * process_set.size()
        options["key_length"] = key_length or k.shape[1] * process_set.size()
    return q, k, v, length, options
