"""Checkpoints of a job: each rank writes a part, a whole one is always there, and any number of ranks goes on from it.

>>> from rueda.torch import checkpoint
>>> state = {"model": model, "optimizer": optimizer, "epoch": 0}
>>> first = checkpoint.resume("run7", state) or 0
>>> checkpoint.save("run7", state, step=100)  # goes on while a thread writes

    _saving    agree, and begin
    _copying   the copy that training waits for
    _writing   a save of one rank, behind training
    _marks     how the first rank learns of the others' files
    _shares    which rank writes what
    _state     modules, optimizers and objects as tensors and plain values, and back
    _tree      plain values as JSON
    _folder    names, manifests, locks, what is removed
    _loading   read, compare, and only then change
    _ranks     how ranks agree
    _keeper    checkpoints of what a job commits

The module can be called, too: ``hvd.checkpoint(module)`` is activation checkpointing, `rueda.torch.checkpointing`, which
has been called so for longer.
"""

import inspect
import sys
import types

from rueda.torch.checkpoint._folder import Checkpoint, Damaged
from rueda.torch.checkpoint._loading import latest, load, resume
from rueda.torch.checkpoint._saving import save, wait
from rueda.torch.checkpointing import checkpoint

__all__ = ["Checkpoint", "Damaged", "latest", "load", "resume", "save", "wait"]


class _Module(types.ModuleType):
    __call__ = staticmethod(checkpoint)


__signature__ = inspect.signature(checkpoint)
sys.modules[__name__].__class__ = _Module
