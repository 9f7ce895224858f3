"""Finds out what kind of checkpoint lies at a path."""

import os

from rueda.torch.sharding import _deepspeed, _sources
from rueda.torch.sharding._checkpoint import Checkpoint, is_checkpoint


def source_at(path):
    """The `Source`; ValueError where there is none."""
    path = os.fspath(path)
    if is_checkpoint(path):
        return Checkpoint(path)
    folder = _deepspeed.folder_at(path)
    if folder is not None:
        return _deepspeed.source(folder)
    raise FileNotFoundError(f"{path} has no state of an optimizer: neither what save_state() wrote nor DeepSpeed's")


def load_plain(path):
    """The ``state_dict`` of a plain optimizer, whole, from what `save_state` of a sharded one wrote, or DeepSpeed.

    Needs no job. Parameters are numbered as in the optimizer that was saved.
    """
    return _sources.plain(source_at(path))
