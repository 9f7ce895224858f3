"""PyTorch tensors: an autograd function around the calls."""

import torch

from rueda.attention import device
from rueda.attention._calls import Ended  # also of a GPU, whose stream has the results when it comes to them
from rueda.attention._layouts import runs_of
from rueda.attention._tensors import backward, forward, name_of, unshard, unshard_gradient  # noqa: F401
from rueda.torch._compiler import graph as _collectives_graph
from rueda.torch._compiler import is_compiling  # noqa: F401

EQUAL_SHARES = False  # without a length the ranks are asked

if _collectives_graph is None:
    graph = None
else:
    from rueda.attention import _graph as graph  # noqa: F401


def heads_second(tensor):
    return tensor.transpose(1, 2)


def options_of(q, options):
    """What a plan for tensors of this device must say."""
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"attention: tensors must be on the CPU or a CUDA GPU, got {q.device}; use .cpu()")
    return device.options_of(options) if device.takes(q) else options


class _Attention(torch.autograd.Function):
    """(q, k, v) -> (out, lse); both have gradients. ``started`` receives the call."""

    @staticmethod
    def forward(ctx, plan, threads, save, wait, started, q, k, v):
        ctx.call, ctx.saved, tensors = forward(plan, threads, save, q, k, v)
        if wait:
            ctx.call.wait()
        started.append(ctx.call)
        ctx.plan, ctx.threads = plan, threads
        ctx.save_for_backward(*(tensors[:3] if save == "qkv" else tensors))
        ctx.set_materialize_grads(False)
        return tensors[3], tensors[4]

    @staticmethod
    def backward(ctx, dout, dlse):
        ctx.call.wait()
        with torch.no_grad():
            grads = backward(ctx.plan, ctx.threads, ctx.saved, ctx.saved_tensors, dout, dlse)
        if torch.is_grad_enabled():  # create_graph=True
            grads = _First.apply(torch.empty(0, requires_grad=True), *grads)
        return None, None, None, None, None, *grads


class _First(torch.autograd.Function):
    """Gradients that have none."""

    @staticmethod
    def forward(ctx, _, *grads):
        return tuple(each.view_as(each) for each in grads)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("rueda: attention has no second derivatives, only first ones: leave out create_graph=True")


def attention(plan, q, k, v, threads, save, wait, process_set):
    """(out, lse, call); without ``wait`` the first two are filled when the call has ended."""
    if device.takes(q):
        return *device.attend(plan, save, q, k, v), Ended()
    started = []
    out, lse = _Attention.apply(plan, threads, save, wait, started, q, k, v)
    return out, lse, started[0]


def with_local_attention(*arguments):
    from rueda.attention import _heads

    return _heads.with_local_attention(*arguments)


def take(full, layout, axis, process_set):
    """Cut by runs, not by an index: autograd and the compiler see it all."""
    runs = runs_of(layout, full.shape[axis], process_set.rank(), process_set.size())
    if layout == "striped":
        begin, _, step = runs[0]
        index = (slice(None),) * (axis % full.ndim) + (slice(begin, None, step),)
        return full[index].contiguous()
    parts = [full.narrow(axis, begin, count) for begin, count, _ in runs]
    return torch.cat(parts, axis) if len(parts) > 1 else parts[0].contiguous()


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, positions, own, length, axis, process_set):
        ctx.arguments = own, axis, process_set
        return unshard(shard, positions, length, axis, process_set)

    @staticmethod
    def backward(ctx, grad):
        return unshard_gradient(grad, *ctx.arguments), None, None, None, None, None


def put_together(shard, positions, own, length, axis, process_set):
    return _Unshard.apply(shard, positions, own, length, axis, process_set)


def of_sinks(sinks, out, lse):
    """The partial result of scores without a value."""
    sinks = torch.as_tensor(sinks, dtype=lse.dtype, device=lse.device)
    return torch.zeros_like(out), sinks[:, None].expand_as(lse)


def merge(out, lse, out2, lse2):
    top = torch.maximum(lse, lse2)
    safe = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    a, b = torch.exp(lse - safe), torch.exp(lse2 - safe)
    total = a + b
    none = total == 0
    total = torch.where(none, torch.ones_like(total), total)
    merged = torch.where(none, torch.full_like(safe, -torch.inf), safe + torch.log(total))
    weights = [(x / total).transpose(1, 2).unsqueeze(-1) for x in (a, b)]
    return (out * weights[0] + out2 * weights[1]).to(out.dtype), merged


def mix_detached(outs, lses, heads_first=False):
    """Attention over all sets of keys from the results over each; the weights have no gradient."""
    every = torch.stack([lse.detach() for lse in lses])
    total = torch.logsumexp(every, 0)
    safe = torch.where(torch.isinf(total), torch.zeros_like(total), total)
    weights = torch.exp(every - safe).unsqueeze(-1)
    if not heads_first:
        weights = weights.transpose(2, 3)
    mixed = sum(weight * out for weight, out in zip(weights, outs))
    return mixed.to(outs[0].dtype), total
