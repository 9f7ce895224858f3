"""``rueda migrate checkpoint FROM TO``: a checkpoint of DeepSpeed's ZeRO, or a file of ``torch.save``, as rueda's.

TO gets model.safetensors, the weights, and optimizer/, which ``load_state`` of a sharded optimizer takes, on any number
of ranks. Nothing that a file holds is run; what is no tensor and no plain value is refused.
"""

import argparse
import os
import pickle
import sys

import torch

from rueda.torch import _safetensors
from rueda.torch._files import replaced
from rueda.torch.sharding import _deepspeed
from rueda.torch.sharding._saving import save_whole
from rueda.torch.sharding._sources import Plain

MODEL, OPTIMIZER = "model.safetensors", "optimizer"


def convert(source, target):
    """Returns what was written, for people. ValueError, OSError: what is wrong with the source."""
    folder = _deepspeed.folder_at(source)
    if folder is not None:
        weights, state = _deepspeed.weights(folder), _deepspeed.source(folder)
    elif os.path.isfile(source):
        weights, state = _of_file(source)
    else:
        raise FileNotFoundError(f"{source} is neither a checkpoint of DeepSpeed nor a file of torch.save")
    if not weights and state is None:
        raise ValueError(f"{source} has neither a model's state_dict nor an optimizer's")
    os.makedirs(target, exist_ok=True)
    written = []
    if weights:
        place = os.path.join(target, MODEL)
        with replaced(place) as new:
            _safetensors.save(new, weights)
        written.append(f"{place}: {len(weights)} tensors")
    if state is not None:
        place = os.path.join(target, OPTIMIZER)
        save_whole(place, state)
        written.append(f"{place}: state of {sum(len(numbers) for _, numbers in state.groups)} parameters")
    return written


def _of_file(path):
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError) as error:
        raise ValueError(f"{path} is not read: {error}") from error
    weights, states = {}, []
    _look(found, "", weights, states)
    if len(states) > 1:
        raise ValueError(f"{path} has {len(states)} optimizers; save one alone")
    return weights, Plain(states[0]) if states else None


def _look(found, prefix, weights, states):
    """Finds state_dicts in nested dicts: an optimizer's has groups, a model's has tensors."""
    if not isinstance(found, dict):
        return
    if "param_groups" in found and "state" in found:
        states.append(found)
    elif found and all(isinstance(value, torch.Tensor) for value in found.values()):
        clash = weights.keys() & found.keys()
        weights.update({prefix + str(key) if key in clash else str(key): value for key, value in found.items()})
    else:
        for key, value in found.items():
            _look(value, f"{prefix}{key}.", weights, states)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="rueda migrate checkpoint",
        description="Converts a checkpoint of DeepSpeed's ZeRO (its folder), or a file of torch.save, to rueda's: "
        f"TO/{MODEL} and TO/{OPTIMIZER}, for load_state() of a sharded optimizer.",
    )
    parser.add_argument("source", metavar="FROM")
    parser.add_argument("target", metavar="TO")
    given = parser.parse_args(arguments)
    try:
        for line in convert(given.source, given.target):
            print(line)
    except (OSError, ValueError) as error:
        print(f"{given.source}: {error}", file=sys.stderr)
        return 1
    return 0
