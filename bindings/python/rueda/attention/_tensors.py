"""What is done with PyTorch tensors, whether autograd or a graph of torch.compile asks for it."""

import torch

from rueda import torch as hvd
from rueda.attention import _calls, _kept


def name_of(tensor):
    return str(tensor.dtype).replace("torch.", "")


def forward(plan, threads, save, q, k, v):
    """Starts a forward on detached tensors: (call, saved, (q, k, v, out, lse))."""
    q, k, v = (x.detach().contiguous() for x in (q, k, v))
    call, saved, out, lse = _kept.once(plan, save, lambda: _start(plan, threads, save != "qkv", q, k, v))
    return call, saved, (q, k, v, out, lse)


def _start(plan, threads, saves, q, k, v):
    out = torch.empty_like(q)
    lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    tensors = (q, k, v, out, lse)
    call, saved = _calls.start_forward(plan, threads, *(x.data_ptr() for x in tensors), tensors, saves)
    return call, saved, out, lse


def backward(plan, threads, saved, tensors, dout, dlse):
    """The gradients of q, k, v; those of out and lse may be None. Of ``tensors`` that are q, k and v alone, the rest is computed again."""
    if len(tensors) == 3:
        call, saved, *results = _start(plan, threads, True, *tensors)
        call.wait()
        tensors = (*tensors, *results)
    q, k, v, out, _ = tensors
    dout = torch.zeros_like(out) if dout is None else dout.to(out.dtype).contiguous()
    if dlse is not None:
        dlse = dlse.to(torch.float32).contiguous()
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    call = _calls.start_backward(
        plan, threads, dout.data_ptr(), None if dlse is None else dlse.data_ptr(),
        *(x.data_ptr() for x in tensors), saved, *(x.data_ptr() for x in (dq, dk, dv)),
        (*tensors, dout, dlse, dq, dk, dv),
    )  # fmt: skip
    call.wait()
    return dq, dk, dv


def unshard(shard, positions, length, axis, process_set):
    rows = shard.detach().movedim(axis, 0).contiguous()
    gathered = hvd.allgather(rows, process_set=process_set)
    whole = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    whole[torch.from_numpy(positions).to(rows.device)] = gathered
    return whole.movedim(0, axis).contiguous()


def unshard_gradient(grad, own, axis, process_set):
    """Each rank's gradient is that of its own copy of the whole; they are added."""
    total = hvd.allreduce(grad.contiguous(), op=hvd.Sum, process_set=process_set)
    return total.index_select(axis, torch.from_numpy(own).to(total.device))
