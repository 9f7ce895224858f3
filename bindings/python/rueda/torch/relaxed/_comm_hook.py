"""Communication hooks: the script says how gradients are combined, as with DDP.

    backward:  bucket n is full -> hook(state, bucket) -> future | bucket n + 1 ... | ...
    step():    waits for the futures -> their values into p.grad -> the wrapped step

A hook of ``DistributedDataParallel.register_comm_hook`` works unchanged.
"""

import torch

from rueda.common import basics
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch._distributed import _Distributed, _some
from rueda.torch._policies import Policy, dense, write_gradient
from rueda.torch._reduction import Reduction
from rueda.torch.compression import Compression
from rueda.torch.relaxed._buckets import Line


def register_comm_hook(optimizer, state=None, hook=None, *, bucket_cap_mb=25.0):
    """From now on ``hook(state, bucket)`` combines the gradients of a `DistributedOptimizer`.

    Gradients come in buckets, during backward, in the same order on all ranks. ``step()`` uses the values of
    the futures that the hook returns. Accumulation, ``no_sync()``, clipping, GradScaler and closures are as
    without. On one rank the hook is called, too; a rank that is no member of the optimizer's process set
    uses its own gradients.

    Parameters
    ----------
    optimizer : DistributedOptimizer
        With ``op=Average`` and without compression, groups, shards, gradients in the arena: what these
        would do, the hook does. One hook, before the first backward pass or between two steps.
    state : object
        Given to the hook: for PyTorch's own hooks a process group, or None for the default one. May be left
        out: ``register_comm_hook(optimizer, hook)``.
    hook : callable
        ``hook(state, bucket) -> torch.futures.Future``, with a bucket that has the methods of
        ``torch.distributed.GradBucket``. The future's value is a tensor, or a list whose first it is, of as
        many elements as ``bucket.buffer()``. `get_future` makes one of an ``*_async`` handle.
    bucket_cap_mb : float
        How large buckets are, in MiB; the first has at most one.

    An error in a hook is a RuntimeError on its rank that names hook, bucket and parameters. Others wait
    for what that rank did not start until it ends, or comes.
    """
    if hook is None:
        state, hook = None, state
    if not callable(hook):
        raise TypeError(f"register_comm_hook: the hook must be callable, not {type(hook).__name__}")
    if not bucket_cap_mb > 0:
        raise ValueError(f"bucket_cap_mb={bucket_cap_mb!r} must be > 0")
    _check(optimizer)
    if not optimizer._reduce_settings.process_set.included():
        return
    sparse_as_dense = optimizer._sparse_as_dense
    policy = Hooked(optimizer._reduce_settings, hook, state, sparse_as_dense, int(bucket_cap_mb * (1 << 20)))
    optimizer._use_policy(policy)


def _check(optimizer):
    if not isinstance(optimizer, _Distributed):
        is_sharded = hasattr(optimizer, "_wire")
        hint = "shard= reduces in its own way, which takes no hook" if is_sharded else "wrap it first"
        raise TypeError(f"register_comm_hook is for what hvd.DistributedOptimizer() returned: {hint}")
    if not optimizer._takes_hooks:
        raise ValueError(f"hvd.{optimizer._kind} has its own way to combine ranks, which takes no communication hook")
    settings = optimizer._reduce_settings
    for what, given in (
        ("op", settings.op != basics.Average),
        ("gradient_predivide_factor", settings.prescale != 1.0),
        ("compression", settings.compression is not Compression.none),
        ("gradients_in_arena", optimizer._gradient_buffers is not None),
    ):
        if given:
            raise ValueError(f"{what} is not for an optimizer with a communication hook, which does that itself")
    if isinstance(optimizer._reduce_policy, Hooked):
        raise RuntimeError("the optimizer has a communication hook already")
    if any(gradient.group is not None for gradient in optimizer._gradient_of.values()):
        raise ValueError("groups are not for an optimizer with a communication hook: it gets buckets")
    if optimizer._this_step.pending or optimizer._this_step.is_partial:
        raise RuntimeError("register_comm_hook: gradients are being reduced; call it between two steps")


class Hooked(Policy):
    """A bucket's gradients are what the hook's future gives."""

    def __init__(self, settings, hook, state, sparse_as_dense, most_bytes):
        super().__init__(settings)
        self._hook, self._state, self._sparse_as_dense = hook, state, sparse_as_dense
        self._line = Line(most_bytes, self._launch)

    def adopt(self, gradients):
        self._line.append(gradients)

    def _launch(self, bucket, index, is_last):
        members, what = bucket.gradients, _Place(self._hook, bucket, index)
        view = bucket.filled(index, is_last, self._dense)
        try:
            future = self._hook(self._state, view)
        except Exception as error:
            what.fail(error)
        if not isinstance(future, torch.futures.Future):
            raise TypeError(f"{what} returned {type(future).__name__} instead of a torch.futures.Future")
        reduction = HookReduction(bucket, view, future, what)
        members[0].step.pending.append(reduction)
        for member in members:
            member.reduction = reduction
            bucket.forget(member)

    def _dense(self, gradient):
        grad = gradient.parameter.grad
        if grad.is_sparse and not self._sparse_as_dense:
            raise ValueError(
                f"the gradient of {gradient.name} is sparse; with a communication hook use "
                "DistributedOptimizer(sparse_as_dense=True)"
            )
        return dense(grad)


class HookReduction(Reduction):
    """Of a bucket that the hook has."""

    def __init__(self, bucket, view, future, what):
        self._bucket, self._view, self._future, self._what = bucket, view, future, what
        super().__init__(bucket.gradients, [], self._put_back)

    def wait(self):
        if self._results is None:
            try:
                value = self._future.wait()
            except Exception as error:
                self._what.fail(error)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            self._results = [self._view.fitting(value, f"what {self._what} gave")]

    def _put_back(self, flat):
        for gradient, part in zip(self.gradients, self._view.parts_of(flat)):
            write_gradient(gradient.parameter, part)

    def give_up(self, end):
        self._bucket.renew()


class _Place:
    """Which hook, and of which bucket, for messages."""

    def __init__(self, hook, bucket, index):
        self._hook, self._bucket, self._index = hook, bucket, index

    def __str__(self):
        name = getattr(self._hook, "__qualname__", type(self._hook).__name__)
        names = _some([gradient.name for gradient in self._bucket.gradients])
        return f"communication hook {name} of bucket {self._index} ({names})"

    def fail(self, error):
        """Raises it with what is known here; rueda's own error says everything already."""
        if isinstance(error, (HorovodInternalError, DeadlineExceeded)):
            raise error
        raise RuntimeError(f"{self} failed on rank {basics.rank()}: {type(error).__name__}: {error}") from error
