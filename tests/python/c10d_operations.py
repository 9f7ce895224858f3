"""Every operation of torch.distributed once, by name: `OPERATIONS[name](group, bytes_of_a_tensor)`.

All members call the same one. Results are not looked at.
"""

import torch
import torch.distributed as dist

FLOAT_BYTES = 4


def _all_reduce(group, many):
    dist.all_reduce(_ones(many), group=group)


def _all_reduce_later(group, many):
    dist.all_reduce(_ones(many), group=group, async_op=True).wait()


def _all_reduce_coalesced(group, many):
    with dist._coalescing_manager(group):
        dist.all_reduce(_ones(many), group=group)
        dist.all_reduce(_ones(8), group=group)


def _broadcast(group, many):
    dist.broadcast(_ones(many), group_src=0, group=group)


def _reduce(group, many):
    dist.reduce(_ones(many), group_dst=0, group=group)


def _all_gather(group, many):
    dist.all_gather(_each(group, many), _ones(many), group)


def _all_gather_into_tensor(group, many):
    dist.all_gather_into_tensor(_ones(many * group.size()), _ones(many), group)


def _reduce_scatter(group, many):
    dist.reduce_scatter(_ones(many), _each(group, many), group=group)


def _reduce_scatter_tensor(group, many):
    dist.reduce_scatter_tensor(_ones(many), _ones(many * group.size()), group=group)


def _gather(group, many):
    outputs = _each(group, many) if group.rank() == 0 else None
    dist.gather(_ones(many), outputs, group_dst=0, group=group)


def _scatter(group, many):
    inputs = _each(group, many) if group.rank() == 0 else None
    dist.scatter(_ones(many), inputs, group_src=0, group=group)


def _all_to_all(group, many):
    dist.all_to_all(_each(group, many), _each(group, many), group)


def _all_to_all_single(group, many):
    dist.all_to_all_single(_ones(many * group.size()), _ones(many * group.size()), group=group)


def _barrier(group, _):
    dist.barrier(group=group)


def _messages(group, many):
    """Each sends to its right."""
    right, left = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
    sent = dist.isend(_ones(many), group_dst=right, group=group)
    dist.recv(_ones(many), group_src=left, group=group)
    sent.wait()


def _messages_from_anybody(group, many):
    """All others send to the first, which takes them as they come, and answers."""
    others = group.size() - 1
    if group.rank() == 0:
        for _ in range(others):
            source = dist.recv(_ones(many), group=group)
            dist.send(_ones(1), source, group=group)
    else:
        dist.send(_ones(many), group_dst=0, group=group)
        dist.recv(_ones(1), group_src=0, group=group)


def _all_gather_object(group, _):
    dist.all_gather_object([None] * group.size(), {"rank": group.rank()}, group)


def _gather_object(group, _):
    outputs = [None] * group.size() if group.rank() == 0 else None
    dist.gather_object({"rank": group.rank()}, outputs, group=group, group_dst=0)


def _broadcast_object_list(group, _):
    dist.broadcast_object_list([{"rank": group.rank()}], group_src=0, group=group)


def _scatter_object_list(group, _):
    inputs = [{"to": rank} for rank in range(group.size())] if group.rank() == 0 else None
    dist.scatter_object_list([None], inputs, group_src=0, group=group)


OPERATIONS = {
    function.__name__[1:]: function
    for function in (
        _all_reduce,
        _all_reduce_later,
        _all_reduce_coalesced,
        _broadcast,
        _reduce,
        _all_gather,
        _all_gather_into_tensor,
        _reduce_scatter,
        _reduce_scatter_tensor,
        _gather,
        _scatter,
        _all_to_all,
        _all_to_all_single,
        _barrier,
        _messages,
        _messages_from_anybody,
        _all_gather_object,
        _gather_object,
        _broadcast_object_list,
        _scatter_object_list,
    )
}


def _ones(many):
    return torch.ones(max(1, many // FLOAT_BYTES))


def _each(group, many):
    return [_ones(many) for _ in range(group.size())]
