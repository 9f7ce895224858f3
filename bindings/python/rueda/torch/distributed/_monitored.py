"""`monitored_barrier` for groups of ours: rank 0 of the group learns who does not come, and tells the others."""

import ctypes
import functools
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded
from rueda.torch.distributed._errors import CollectiveTimeout, as_backend_error
from rueda.torch.distributed._messages import MOST_TAG

_HERE, _VERDICT = MOST_TAG + 1, MOST_TAG + 2  # tags that no caller can use
_BYTES = 512


def meet(group, seconds, wait_all_ranks):
    """Returns on all ranks when all have come; CollectiveTimeout names those that have not."""
    end = time.monotonic() + seconds
    try:
        if group._rank == 0:
            _ask(group, end, seconds, wait_all_ranks)
        else:
            _report(group, end)
    except Exception as error:
        raise as_backend_error(error) from None


def _ask(group, end, seconds, wait_all_ranks):
    tokens = torch.empty(group._size, dtype=torch.uint8)
    late, asked = [], []
    for rank in range(1, group._size):
        asked.append((rank, _message(group, _ffi.RECV, rank, _HERE, tokens[rank : rank + 1])))
    for rank, request in asked:
        try:
            request.wait(max(0.0, end - time.monotonic()))
        except DeadlineExceeded:
            late.append(rank)
            runtime.hold((request,), tokens)  # is met by that rank's call, whenever it comes
            if not wait_all_ranks:
                break
    text = ""
    if late:
        who = ", ".join(map(str, late))
        text = (
            f"monitored_barrier: rank {who} of group {group._name!r} did not come within {seconds:g} s"
            if len(late) > 1 or wait_all_ranks
            else f"monitored_barrier: rank {who} of group {group._name!r} did not come within {seconds:g} s, "
            "and others may be late as well"
        )
    for rank, request in asked:
        if rank in late or not request.test():
            runtime.hold((request,), tokens)
            continue
        verdict = torch.zeros(_BYTES, dtype=torch.uint8)
        said = text.encode()[: _BYTES - 1]
        ctypes.memmove(verdict.data_ptr(), said, len(said))
        runtime.hold((_message(group, _ffi.SEND, rank, _VERDICT, verdict),), verdict)
    if late:
        raise CollectiveTimeout(text)


def _report(group, end):
    token, verdict = torch.zeros(1, dtype=torch.uint8), torch.zeros(_BYTES, dtype=torch.uint8)
    runtime.hold((_message(group, _ffi.SEND, 0, _HERE, token),), token)
    request = _message(group, _ffi.RECV, 0, _VERDICT, verdict)
    try:
        request.wait(max(0.0, end - time.monotonic()))
    except BaseException:
        runtime.hold((request,), verdict)
        raise
    text = bytes(verdict.tolist()).rstrip(b"\0").decode("utf-8", "replace")
    if text:
        raise CollectiveTimeout(text)


def _message(group, kind, rank, tag, tensor):
    return group._group.start_message(
        kind, _ffi.UINT8, tensor.numel(), group._ranks[rank], tag, tensor.data_ptr()
    )


def teach_pytorch(ours):
    """PyTorch refuses `monitored_barrier` by the backend's name: for groups of class ``ours`` it does no more."""
    c10d = dist.distributed_c10d
    theirs = c10d.monitored_barrier

    @functools.wraps(theirs)
    def monitored_barrier(group=dist.GroupMember.WORLD, timeout=None, wait_all_ranks=False):
        used = dist.GroupMember.WORLD if group is None else group
        if not isinstance(used, ours):
            return theirs(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        return used.monitored_barrier(timeout, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
