"""Attention as operations of a graph, for torch.compile: as `rueda.torch._graph` has collectives.

An operation gets its tensors and the number of its settings: what else a call says, which the
compiler has checked to be constant. Plans are made, and arguments checked, when it runs.
"""

import ctypes
import weakref

import torch

from rueda.attention import _groups, _tensors, device
from rueda.attention._calls import Saved, refuse, told
from rueda.attention._layouts import places
from rueda.attention._lengths import length_of, plan_for, threads_of
from rueda.torch._operations import id_in_graph, operation

_settings = []  # (process set id, threads, what is saved, options as pairs)
_numbers = {}
_kept = weakref.WeakValueDictionary()


@torch._dynamo.assume_constant_result
def _number_of(set_id, threads, save, options):
    """The number of these settings, while compiling; they are guarded by who called."""
    settings = (set_id, threads, save, options)
    if settings not in _numbers:
        _numbers[settings] = len(_settings)
        _settings.append(settings)
    return _numbers[settings]


class _Saved(ctypes.Structure):
    """What a forward keeps for its backward, as the memory of a tensor: it lives as long. Of GPU tensors a dict of more of them."""

    _fields_ = [("number", ctypes.c_int64)]

    def __init__(self, call_saved):
        super().__init__(id(self))
        self.call_saved = call_saved
        _kept[id(self)] = self


def _saves(number):
    return _settings[number][2]


def _plan(q, k, length, number):
    set_id, threads, _, options = _settings[number]
    process_set = _groups.of_id(set_id)
    with told(process_set, refuse):
        plan = plan_for(
            tuple(q.shape), tuple(k.shape), _tensors.name_of(q), length, process_set, dict(options)
        )
    return plan, threads_of(threads, process_set)


@operation(
    "(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor? out, Tensor? lse, Tensor? kept, "
    "SymInt? length, int number) -> Tensor[]",
    lambda dout, dlse, q, k, v, *_: [torch.empty_like(x).contiguous() for x in (q, k, v)],
)
def _attention_backward(dout, dlse, q, k, v, out, lse, kept, length, number):
    plan, threads = _plan(q, k, length, number)
    known = None if kept is None else _kept.get(kept.item())
    tensors = [x.detach() for x in (q, k, v, out, lse) if x is not None]
    if device.takes(q):
        if known is None and kept is not None:
            raise RuntimeError("attention: what its forward kept for its backward is gone: the graph must be run whole")
        return device.backward(plan, None if known is None else known.call_saved, tensors, dout, dlse)
    tensors = [x.contiguous() for x in tensors]
    saved = Saved() if known is None else known.call_saved
    return list(_tensors.backward(plan, threads, saved, tensors, dout, dlse))


def _setup(ctx, inputs, output):
    q, k, v, ctx.length, ctx.number = inputs
    ctx.save_for_backward(q, k, v, *(() if _saves(ctx.number) == "qkv" else output))
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # a gradient of lse that nobody asked for would need other kernels


def _gradient(ctx, grads):
    given = (*ctx.saved_tensors, None, None, None)[:6]
    own = _attention_backward(grads[0], grads[1], *given, ctx.length, ctx.number)
    return own[0], own[1], own[2], None, None


def _shapes(q, k, v, *_):
    return [
        q.new_empty(q.shape),
        q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
        torch.empty((1,), dtype=torch.int64, device="cpu"),
    ]


@operation(
    "(Tensor q, Tensor k, Tensor v, SymInt? length, int number) -> Tensor[]",
    _shapes,
    _gradient,
    _setup,
)
def _attention(q, k, v, length, number):
    plan, threads = _plan(q, k, length, number)
    if device.takes(q):
        out, lse, saved = device.forward(plan, _saves(number), *(x.detach() for x in (q, k, v)))
    else:
        call, saved, (*_, out, lse) = _tensors.forward(plan, threads, _saves(number), q, k, v)
        call.wait()
    return [out, lse, torch.frombuffer(_Saved(saved), dtype=torch.int64)]


def attention(q, k, v, length, process_set, threads, save, options):
    number = _number_of(id_in_graph(process_set), threads, save, tuple(options.items()))
    out, lse, _ = _attention(q, k, v, length, number)
    return out, lse


@operation(
    "(Tensor grad, SymInt tokens, str layout, int axis, int set_id) -> Tensor",
    lambda grad, tokens, layout, axis, *_: grad.new_empty(
        [tokens if i == axis else n for i, n in enumerate(grad.shape)]
    ),
)
def _unshard_backward(grad, tokens, layout, axis, set_id):
    process_set = _groups.of_id(set_id)
    _, own = places(layout, grad.shape[axis], process_set)
    return _tensors.unshard_gradient(grad, own, axis, process_set)


def _unshard_setup(ctx, inputs, output):
    shard, _, *ctx.rest = inputs
    ctx.tokens = shard.shape[ctx.rest[1]]


def _unshard_gradient(ctx, grad):
    return _unshard_backward(grad, ctx.tokens, *ctx.rest), None, None, None, None


def _whole(shard, length, layout, axis, *_):
    if length is None:
        length = torch.library.get_ctx().new_dynamic_size()
    return shard.new_empty([length if i == axis else n for i, n in enumerate(shard.shape)])


@operation(
    "(Tensor shard, SymInt? length, str layout, int axis, int set_id) -> Tensor",
    _whole,
    _unshard_gradient,
    _unshard_setup,
)
def _unshard(shard, length, layout, axis, set_id):
    process_set = _groups.of_id(set_id)
    tokens = shard.shape[axis]
    if length is None:
        length = length_of(tokens, process_set)
    positions, own = places(layout, length, process_set)
    if tokens != len(own):
        raise ValueError(f"this rank has {tokens} tokens, expected {len(own)}")
    return _tensors.unshard(shard, positions, length, axis, process_set)


def unshard(shard, layout, length, axis, process_set):
    return _unshard(shard, length, layout, axis % shard.ndim, id_in_graph(process_set))
