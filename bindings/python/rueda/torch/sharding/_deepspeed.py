"""Checkpoints of DeepSpeed's ZeRO: optimizer state and weights of stages 0 to 3, as versions since 0.9 write them.

    latest                                       the folder of the last save
    global_step3/mp_rank_00_model_states.pt      module, parameters' names and shapes (stage 3: one for each rank)
    global_step3/[bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt     rank 0's partition of state and float32 weights

Stages 1 and 2 lay the parameters of each group one behind the other and cut that in equal parts, of which the last ends
early. Stage 3 cuts each parameter in equal parts, the last filled up, and each rank has its parts of all of them one
behind the other.
"""

import collections
import os
import re

import torch

from rueda.torch.sharding._sources import Plain, Source
from rueda.torch.sharding._unpickling import load

_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")

_Place = collections.namedtuple("_Place", "name shape group offset")
_Place.__doc__ = """A parameter; ``offset`` of its first element in its group (stage 3: of its part, in each rank's)."""


def folder_at(path):
    """Where the files lie: the path, or what its file ``latest`` names. None: it is no checkpoint of DeepSpeed."""
    latest = os.path.join(path, "latest")
    if os.path.isfile(latest):
        with open(latest, encoding="utf-8") as file:
            path = os.path.join(path, os.path.basename(file.read().strip()))
    try:
        names = os.listdir(path)
    except OSError:
        return None
    return path if any(_MODEL.fullmatch(name) for name in names) else None


class Files:
    """All that a checkpoint has, not yet put together."""

    def __init__(self, folder):
        self.folder = folder
        names = os.listdir(folder)
        if any("expert" in name for name in names):
            raise ValueError(f"{folder} is of a mixture of experts, whose parts are not put together here")
        self.models = self._of(_MODEL, names)
        states = [each["optimizer_state_dict"] for each in self._of(_OPTIMIZER, names)]
        for state in states:
            if not isinstance(state.get("base_optimizer_state", {}), dict):
                raise ValueError(f"{folder} is an elastic checkpoint of DeepSpeed; save it with elastic_checkpoint: false")
        self.states = states
        self.shards_parameters = bool(states) and "fp32_flat_groups" in states[0]  # stage 3
        count = states[0]["partition_count"] if states else 0
        count = max(count) if isinstance(count, (list, tuple)) else count
        if count != len(states):
            raise ValueError(f"{folder} has {len(states)} of the {count} files of ZeRO's ranks")

    def _of(self, pattern, names):
        """What files of this kind hold, by rank."""
        found = {}
        for name in names:
            match = pattern.fullmatch(name)
            if match and int(match.group(2)) > 0:
                raise ValueError(f"{self.folder} is of a model that was cut over ranks ({name}), which is not put together here")
            if match:
                found[int(match.group(1) or 0)] = load(os.path.join(self.folder, name))
        return [found[rank] for rank in sorted(found)]

    def places(self):
        """Of all parameters that were trained, in the order of the optimizer's groups."""
        result, offset, size = [], 0, len(self.states)
        paddings = self.states[0].get("param_alignment_paddings")
        for group, shapes in enumerate(self.models[0]["param_shapes"]):
            offset = offset if self.shards_parameters else 0
            for n, (name, shape) in enumerate(shapes.items()):
                result.append(_Place(name, tuple(shape), group, offset))
                count = torch.Size(shape).numel()
                if self.shards_parameters:
                    offset += -(-count // size)
                else:
                    offset += count + (paddings[group][n] if paddings else 0)
        return result

    def read(self, place, parts, first, last):
        """The elements [first, last) of a parameter. ``parts``: a function of rank and group that returns what it is in;
        of stage 3, each rank's flat groups in a list."""
        if self.shards_parameters:
            each = -(-torch.Size(place.shape).numel() // len(self.states))
            pieces = []
            for rank in range(len(self.states)):
                begin, end = max(first - rank * each, 0), min(last - rank * each, each)
                if begin < end:
                    pieces += _cut(parts(rank, None), place.offset + begin, place.offset + end)
            return torch.cat(pieces) if pieces else torch.empty(0)
        parts = [parts(rank, place.group) for rank in range(len(self.states))]
        pieces = _cut(parts, place.offset + first, place.offset + last)
        return torch.cat(pieces) if pieces else torch.empty(0)


def _cut(flats, first, last):
    """The elements [first, last) of flat tensors one behind the other, in parts."""
    pieces, begin = [], 0
    for flat in flats:
        part = flat[max(first - begin, 0) : max(last - begin, 0)]
        if part.numel():
            pieces.append(part)
        begin += flat.numel()
    if sum(piece.numel() for piece in pieces) != last - first:
        raise ValueError(f"DeepSpeed's partitions have {begin} elements where {last} are looked for")
    return pieces


class DeepSpeed(Source):
    """The optimizer's state of such a checkpoint."""

    def __init__(self, files):
        self._files = files
        key = "optimizer_state_dict" if files.shards_parameters else "base_optimizer_state"
        self._states = [state[key] for state in files.states]
        self._places = files.places()
        self.names = {n: place.name for n, place in enumerate(self._places)}
        self.groups = []
        for group, options in enumerate(self._states[0]["param_groups"]):
            numbers = [n for n, place in enumerate(self._places) if place.group == group]
            self.groups.append(({k: v for k, v in options.items() if k != "params"}, numbers))

    def _state_of(self, rank, number):
        """The optimizer's own entry, of flat tensors, that has the parameter."""
        state, place = self._states[rank]["state"], self._places[number]
        if not self._files.shards_parameters:
            return state.get(place.group) or {}
        entries = [n for options in self._states[rank]["param_groups"][: place.group + 1] for n in options["params"]]
        return state.get(entries[-1]) or {} if entries else {}

    def scalars(self, number):
        return {k: v for k, v in self._state_of(0, number).items() if not _is_flat(v)}

    def forms(self, number):
        shape, result = self._places[number].shape, {}
        for key, value in self._state_of(0, number).items():
            if _is_flat(value):
                result[key] = value.dtype, shape, torch.empty(shape, device="meta").stride()
        return result

    def read(self, number, key, first, last):
        def parts(rank, group):
            state = self._states[rank]["state"]
            if group is not None:
                return state[group][key]
            return [state[n][key] for n in sorted(state)]

        return self._files.read(self._places[number], parts, first, last)


def _is_flat(value):
    return isinstance(value, torch.Tensor) and value.dim() > 0


def source(folder):
    """The state, as a `Source`."""
    files = Files(folder)
    if files.states:
        return DeepSpeed(files)
    state = files.models[0].get("optimizer") or {}
    state = state.get("optimizer_state_dict", state)  # of 16-bit parameters
    if "param_groups" not in state:
        raise ValueError(f"{folder} has no state of an optimizer")
    return Plain(state)


def weights(folder):
    """The model's state_dict: parameters that were trained in float32, where ZeRO kept them so."""
    files = Files(folder)
    result = dict(files.models[0]["module"])
    key = "fp32_flat_groups" if files.shards_parameters else "single_partition_of_fp32_groups"

    def parts(rank, group):
        flats = files.states[rank][key]
        return flats if group is None else flats[group]

    for place in files.places() if files.states else ():
        result[place.name] = files.read(place, parts, 0, torch.Size(place.shape).numel()).reshape(place.shape)
    for name, shape in (files.models[0].get("frozen_param_shapes") or {}).items():
        pieces = [model["frozen_param_fragments"][name].reshape(-1) for model in files.models]
        result[name] = torch.cat(pieces)[: shape.numel()].reshape(shape)
    for name, other in (files.models[0].get("shared_params") or {}).items():
        result[name] = result[other].clone()
    return result
