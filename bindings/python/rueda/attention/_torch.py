"""PyTorch tensors: an autograd function around the calls."""

import torch

from rueda import torch as hvd
from rueda.attention import _calls


def name_of(tensor):
    return str(tensor.dtype).replace("torch.", "")


class _Attention(torch.autograd.Function):
    """(q, k, v) -> (out, lse); both have gradients."""

    @staticmethod
    def forward(ctx, plan, threads, q, k, v):
        q, k, v = (x.detach().contiguous() for x in (q, k, v))
        out = torch.empty_like(q)
        lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        tensors = (q, k, v, out, lse)
        call, ctx.saved = _calls.start_forward(
            plan, threads, *(x.data_ptr() for x in tensors), tensors
        )
        call.wait()
        ctx.plan, ctx.threads = plan, threads
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype).contiguous()
        if dlse is not None:
            dlse = dlse.to(torch.float32).contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        inputs = [x.data_ptr() for x in (q, k, v, out, lse)]
        call = _calls.start_backward(
            ctx.plan, ctx.threads, dout.data_ptr(), None if dlse is None else dlse.data_ptr(),
            *inputs, ctx.saved, *(x.data_ptr() for x in (dq, dk, dv)),
            (q, k, v, out, lse, dout, dlse, dq, dk, dv),
        )  # fmt: skip
        call.wait()
        return None, None, dq, dk, dv


def attention(plan, q, k, v, threads):
    for x in (q, k, v):
        if x.device.type != "cpu":
            raise ValueError(f"attention: tensors must be on the CPU, got {x.device}")
    return _Attention.apply(plan, threads, q, k, v)


def take(full, positions, axis):
    return full.index_select(axis, torch.from_numpy(positions)).contiguous()


class _Unshard(torch.autograd.Function):
    """Each rank's gradient is that of its own copy of the whole; they are added."""

    @staticmethod
    def forward(ctx, shard, positions, own, length, axis, process_set):
        ctx.arguments = own, axis, process_set
        rows = shard.detach().movedim(axis, 0).contiguous()
        gathered = hvd.allgather(rows, process_set=process_set)
        whole = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype)
        whole[torch.from_numpy(positions)] = gathered
        return whole.movedim(0, axis).contiguous()

    @staticmethod
    def backward(ctx, grad):
        own, axis, process_set = ctx.arguments
        total = hvd.allreduce(grad.contiguous(), op=hvd.Sum, process_set=process_set)
        return take(total, own, axis), None, None, None, None, None


def put_together(shard, positions, own, length, axis, process_set):
    return _Unshard.apply(shard, positions, own, length, axis, process_set)


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


def mix_detached(outs, lses):
    """Attention over all sets of keys from the results over each; the weights have no gradient."""
    every = torch.stack([lse.detach() for lse in lses])
    total = torch.logsumexp(every, 0)
    safe = torch.where(torch.isinf(total), torch.zeros_like(total), total)
    weights = torch.exp(every - safe).transpose(2, 3).unsqueeze(-1)
    mixed = sum(weight * out for weight, out in zip(weights, outs))
    return mixed.to(outs[0].dtype), total
