"""Checkpoints in folders as DeepSpeed's: ``FOLDER/latest`` names a folder in it, which has the files.

``mp_rank_00_model_states.pt``, written by rank 0, has the model in float32, the whole state of the optimizer as
PyTorch writes it, and what else is needed to go on, on any number of ranks.
"""

import os
import warnings

import torch

from rueda._objects import allgather_object, broadcast_object
from rueda.common import basics
from rueda.torch._files import replaced
from rueda.torch.sharding import _unpickling

FILE = "mp_rank_00_model_states.pt"
LATEST = "latest"


def require_one_tag(tag, validation):
    """DeepSpeed's checkpoint.tag_validation."""
    if validation == "Ignore":
        return
    tags = allgather_object(tag)
    if len(set(tags)) > 1:
        text = f"ranks save checkpoints of different tags: {', '.join(map(repr, tags))}"
        if validation == "Fail":
            raise ValueError(text)
        warnings.warn(text)


def save(folder, tag, state, save_latest):
    """By rank 0; returns, or raises, on all ranks when it is there, whole."""
    problem = None
    if basics.rank() == 0:
        try:
            place = os.path.join(folder, tag)
            os.makedirs(place, exist_ok=True)
            with replaced(os.path.join(place, FILE)) as new:
                torch.save(state, new)
            if save_latest:
                with replaced(os.path.join(folder, LATEST)) as new, open(new, "w") as file:
                    file.write(tag)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    problem = broadcast_object(problem, 0)
    if problem is not None:
        raise RuntimeError(f"rank 0 could not save a checkpoint in {folder}: {problem}")


def load(folder, tag, weights_only=True):
    """(path of the folder, what `save` was given), or (None, None) where there is none. Rank 0 reads.

    ``weights_only``: tensors and plain values, and no code that a file names is run.
    """
    found = None, None, None
    if basics.rank() == 0:
        try:
            found = (*_read(folder, tag, weights_only), None)
        except Exception as error:
            found = None, None, f"{type(error).__name__}: {error}"
    path, state, problem = broadcast_object(found, 0)
    if problem is not None:
        raise RuntimeError(f"rank 0 could not load a checkpoint from {folder}: {problem}")
    return path, state


def _read(folder, tag, weights_only):
    if tag is None:
        latest = os.path.join(folder, LATEST)
        if not os.path.isfile(latest):
            warnings.warn(f"{latest} is not there; nothing is loaded. If there is a checkpoint, give its tag")
            return None, None
        with open(latest) as file:
            tag = file.read().strip()
        if os.path.isabs(tag) or os.pardir in tag.split(os.sep):
            raise ValueError(f"{latest} names {tag!r}, which does not lie in that folder")
    path = os.path.join(folder, str(tag))
    file = os.path.join(path, FILE)
    if not os.path.isfile(file):
        raise FileNotFoundError(f"{file} is not there")
    state = _look(file) if weights_only else _run(file)
    if not isinstance(state, dict) or "rueda" not in state:
        raise ValueError(
            f"{file} is DeepSpeed's own: engine.optimizer.load_state({path!r}) takes its optimizer, `rueda migrate` its weights"
        )
    return path, state


def _look(file):
    try:
        return _unpickling.load(file, mapped=False)
    except ValueError as error:
        raise ValueError(f"{error}; if you trust who wrote it, load with weights_only=False") from error


def _run(file):
    """What is in it, by whatever code it names."""
    try:
        return torch.load(file, map_location="cpu", weights_only=False)
    except TypeError:  # PyTorch before 1.13 has no such word
        return torch.load(file, map_location="cpu")
