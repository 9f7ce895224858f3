"""`TorchState`: what an elastic job of PyTorch keeps."""

import hashlib
import warnings

import torch

from rueda.data import DataLoader
from rueda.elastic import ObjectState
from rueda.elastic._points import points
from rueda.torch import mpi_ops
from rueda.torch.checkpoint._keeper import Keeper
from rueda.torch.elastic._copies import StepGuard
from rueda.torch.elastic._handlers import (
    LRSchedulerStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    handler_of,
    set_handler_registry,
)
from rueda.torch.elastic._local import Local
from rueda.torch.elastic.sampler import ElasticSampler
from rueda.torch.functions import broadcast_object

__all__ = [
    "LRSchedulerStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


def _checked(local, taken, kind):
    """ValueError unless it is a dict of names that are free."""
    if local is None:
        return {}
    if not isinstance(local, dict) or not all(isinstance(name, str) and name.isidentifier() for name in local):
        raise ValueError(f"local={local!r}: a dict of names and values")
    twice = sorted(name for name in local if name in taken or name.startswith("_") or _is_taken(kind, name))
    if twice:
        raise ValueError(f"local= has {', '.join(twice)}, which is the same on all ranks, or a name of the state's own")
    return local


def _is_taken(kind, name):
    return hasattr(TorchState, name) or callable(getattr(kind, name, None))


class TorchState(ObjectState):
    """Model, optimizer and whatever else training goes on from; each becomes an attribute.

    Modules, optimizers, `ElasticSampler`, `rueda.data.DataLoader`, learning-rate schedulers and gradient scalers keep their identity: they are
    saved, restored and synchronized in place. Anything else is a plain object, as in `ObjectState`.

    Parameters
    ----------
    model : torch.nn.Module, optional
    optimizer : torch.optim.Optimizer, optional
    checkpoint : path, optional
        Folder that all ranks see, of this job alone: commits become checkpoints there, written while training goes on, and a
        job that has lost every rank goes on from the newest whole one when it is started again, with any number of ranks.
    checkpoint_every : int
        Commits from one checkpoint to the next; more, where writing takes longer.
    local : dict, optional
        Names and values of what is each rank's own: the place of its data loader, a part of a sharded state. Attributes, too;
        objects with a ``state_dict()`` and tensors stay the ones that they are, anything else is pickled. See below.
    **kwargs
        More of them, or plain objects.

    Notes
    -----
    **What becomes of** ``local``. It is saved and restored with the rest, and never overwritten by rank 0's. In an elastic job
    each `commit` and `save`, which all ranks then call together, sends what has changed in it (pieces of 4 MiB) to another
    rank, its mirror. That is on another host; where all ranks are on one host it is on that one, and the host's loss takes
    both. Until all mirrors have all of it, the commit before counts, everywhere; so what is restored is of one commit on all
    ranks, and of the one that the rest of the state is of. It takes memory for up to four copies, its own and the mirrored (six
    from the loss of a rank to the sync behind it), and another vote in each commit.

    When a rank is lost or taken away, what it had committed goes to a rank that joins the job (in the order of the lost
    members' numbers); to one at most, as all of it is one rank's. Before somebody joins it is in ``state.orphans`` of the
    rank that mirrored it, a list of objects with ``member``, ``rank`` and ``values``; that list is saved and mirrored like
    the rest. Who deals it out among the ranks removes it from there, in the training function:

    >>> for orphan in sum(hvd.allgather_object(state.orphans), []):
    ...     take_over(orphan.values["shard"])
    >>> state.orphans = []

    Tensors of orphans are in host memory, and what was on the GPU of a lost rank comes to the current one of the rank that
    gets it. A tensor in several places of ``local`` comes back as one. If what a lost rank had does not fit the newcomer's
    objects, all ranks raise RuntimeError.

    If a rank and its mirror are lost between two commits, or leave in order at the same commit, all ranks raise RuntimeError:
    take hosts away one after the other. Where all hosts have as many ranks, they may get half as many slots at once.
    Checkpoints have nothing of ``local``; a rank of a job that is started again begins with its own. A job of one rank has no
    mirror.
    """

    _local = None

    def __init__(self, model=None, optimizer=None, *, checkpoint=None, checkpoint_every=1, local=None, **kwargs):
        local = _checked(local, {"model", "optimizer", "orphans", *kwargs}, type(self))
        kwargs.update(model=model, optimizer=optimizer)
        self._handlers, self._guard = {}, None
        self._keeper = None if checkpoint is None else Keeper(checkpoint, every=checkpoint_every)
        self._is_begun = False  # what it has counts: a checkpoint is older
        self._is_committing = False
        for name in list(kwargs):
            handler = handler_of(kwargs[name])
            if handler is not None:
                object.__setattr__(self, name, kwargs.pop(name))
                self._handlers[name] = handler
        super().__init__(bcast_object=broadcast_object, get_rank=mpi_ops.rank, **kwargs)
        self._watch_steps()
        if local:
            self.orphans = []
            for name, value in local.items():
                object.__setattr__(self, name, value)
            self._local = Local(self, local)

    def commit(self):
        # The copying threads of a host's ranks would take the processors from the vote, which then took milliseconds.
        self._is_committing = True
        try:
            super().commit()
        finally:
            self._is_committing = False
            self._copy_late()

    def save(self):
        """Keeps everything, or, with an error, what was kept before. With ``local=`` all ranks call it together."""
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        plain = self._saved_state
        try:
            for handler in self._handlers.values():
                handler.save()
            super().save()
            if self._local is not None:
                self._local.save()
        except BaseException:
            self._saved_state = plain
            for handler, attributes in before:
                vars(handler).clear()
                vars(handler).update(attributes)
            raise
        if self._guard is not None:
            self._guard.saved()
        if not self._is_committing:
            self._copy_late()

    def restore(self):
        """Everything as it was saved last."""
        for handler in self._handlers.values():
            handler.forget_sync()
            handler.restore()
        super().restore()
        if self._local is not None:
            self._local.restore()

    def sync(self):
        """Everything as it is on rank 0, but what is each rank's own; when all of it has come, it counts as saved."""
        if self._local is not None:
            self._local.settle()
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def _synced(self):
        if not self._is_as_saved or self._may_have_changed():
            for handler in self._handlers.values():
                handler.is_settled = False
        for handler in self._handlers.values():
            handler.forget_sync()
        self._save_uncounted()
        self._is_begun = True

    def _may_have_changed(self):
        """Whether code of the script may have run between what was restored and the end of the sync."""
        names = ("commit", "restore", "sync", "reset", "on_reset", "save")
        return bool(self._reset_callbacks) or any(getattr(type(self), name) is not getattr(TorchState, name) for name in names)

    def _expect_sync(self):
        if not self._may_have_changed():
            for handler in self._handlers.values():
                handler.expect_sync()

    def _entered(self):
        for handler in self._handlers.values():
            handler.forget_sync()
        if self._local is not None:
            self._local.settle()

    def _may_change(self):
        return self._local is None or self._local.is_whole

    def _mirrors(self):
        return () if self._local is None else self._local.holders

    def _committed(self):
        if self._keeper is None:
            return
        if self._is_guarded:
            points.repeat(self._keep)
        else:
            self._keep(lambda: None)

    def _keep(self, vote):
        self._keeper.committed(self._whole(), self._commits - self._alone)
        vote()

    def _load_checkpoint(self, alone=False):
        if self._keeper is None or (self._is_begun if alone else self._bcast_object(self._is_begun)):
            return False
        whole = self._whole()
        try:
            commits = self._keeper.resume(whole, alone)
        except RuntimeError as error:
            if not alone:
                raise
            warnings.warn(f"this rank joins without a checkpoint: {error}", RuntimeWarning, stacklevel=2)
            return False
        if commits is None:
            return False
        for name in self._saved_state:
            setattr(self, name, whole[name])
        self._save_uncounted()
        self._agreed(commits)
        return True

    def _whole(self):
        """All of it by name, as checkpoints have it."""
        plain = {name: getattr(self, name) for name in self._saved_state}
        return {**{name: handler.value for name, handler in self._handlers.items()}, **plain}

    def reset(self):
        """Samplers and loaders deal out what is left to the ranks that there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, (ElasticSampler, DataLoader)):
                handler.value.reset()

    def _prepare(self):
        for handler in self._handlers.values():
            handler.prepare()

    def _depends_on_ranks(self):
        has_sampler = any(isinstance(handler.value, (ElasticSampler, DataLoader)) for handler in self._handlers.values())
        return has_sampler or bool(self._reset_callbacks) or type(self).reset is not TorchState.reset

    def _verified(self):
        """Whether what is saved is whole: False if somebody else changed what only the optimizer may change."""
        return all([copies.hold() for copies in self._copies()])

    def _layout(self):
        """Digest of what must be the same on all ranks: names, shapes and dtypes of the models, the optimizers' groups."""
        digest = hashlib.sha256()
        for name, handler in sorted(self._handlers.items()):
            digest.update(f"{name}: {type(handler.value).__name__}\n".encode())
            if isinstance(handler.value, torch.nn.Module):
                for key, each in handler.value.state_dict().items():
                    kind = f"{tuple(each.shape)} {each.dtype}" if isinstance(each, torch.Tensor) else type(each).__name__
                    digest.update(f"{key} {kind}\n".encode())
            elif isinstance(handler.value, torch.optim.Optimizer):
                digest.update(f"{[len(group['params']) for group in handler.value.param_groups]}\n".encode())
        digest.update(repr(sorted(self._saved_state)).encode())
        if self._local is not None:
            digest.update(repr(self._local.names).encode())
        return digest.digest()

    def __setattr__(self, name, value):
        handler = self.__dict__.get("_handlers", {}).get(name)
        super().__setattr__(name, value)
        if handler is not None:
            handler.set_value(value)
            self._watch_steps()

    def _copies(self):
        found = (getattr(handler, "copies", None) for handler in self._handlers.values())
        return [copies for copies in found if copies is not None]

    def _copy_late(self):
        for copies in self._copies():
            copies.begin()

    def _watch_steps(self):
        if self._guard is not None:
            self._guard.close()
        optimizers = [each.value for each in self._handlers.values() if isinstance(each.value, torch.optim.Optimizer)]
        self._guard = StepGuard(optimizers, self._copies) if optimizers else None
