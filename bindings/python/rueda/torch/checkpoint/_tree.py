"""State as JSON, in which tensors are named: what is in a manifest. No code of a file is run to read it."""

import collections
import math

import torch

from rueda.torch import _safetensors


def encoded(value, place, tensors):
    """``value`` as JSON has it. Its tensors go into ``tensors``, by their places.

    ValueError names the place of what has no form there.
    """
    if isinstance(value, torch.Tensor):  # first: most are, and training waits
        _require_whole(value, place)
        if place in tensors:
            raise ValueError(f"two tensors of the state are called {place!r}: give one of their owners another name")
        tensors[place] = value.detach() if value.requires_grad else value
        return {"tensor": place}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, (dict, collections.abc.Mapping)):
        return _encoded_mapping(value, place, tensors)
    for kind, name in ((tuple, "tuple"), (list, "list")):
        if isinstance(value, kind):
            return {name: [encoded(each, f"{place}.{n}", tensors) for n, each in enumerate(value)]}
    if isinstance(value, (set, frozenset)):
        return {"set": [encoded(each, place, tensors) for each in sorted(value)]}
    raise ValueError(
        f"{place!r} is a {type(value).__name__} ({value!r:.60}): checkpoints have tensors, numbers, strings, None, and "
        "lists, tuples, sets and dicts of them"
    )


def _encoded_mapping(value, place, tensors):
    for key in value:
        if type(key) is not str and (isinstance(key, bool) or not isinstance(key, (str, int))):
            raise ValueError(f"{place!r} has the key {key!r}: keys in a checkpoint are strings and whole numbers")
    name = "counter" if isinstance(value, collections.Counter) else "dict"
    return {name: [[key, encoded(each, f"{place}.{key}", tensors)] for key, each in value.items()]}


def _require_whole(tensor, place):
    if hasattr(tensor, "full_tensor"):
        raise ValueError(f"{place!r} is a DTensor, of which each rank has a part: use torch.distributed.checkpoint")
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"{place!r} has no shape yet, because its module is lazy: run one batch through the model first")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise ValueError(f"{place!r} is a tensor of layout {tensor.layout} on {tensor.device}: only dense values can be saved")
    try:
        _safetensors.dtype_name(tensor.dtype)
    except ValueError:
        raise ValueError(f"{place!r} is {tensor.dtype}, for which files of safetensors have no name") from None


def decoded(value, tensors):
    """What was encoded; ``tensors`` by their places."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "tensor":
        return tensors[content]
    if kind in ("dict", "counter"):
        result = {key: decoded(each, tensors) for key, each in content}
        return collections.Counter(result) if kind == "counter" else result
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(each, tensors) for each in content)


def places(value):
    """Of the tensors of what was encoded."""
    if isinstance(value, list):
        for each in value:
            yield from places(each)
    elif isinstance(value, dict):
        for kind, content in value.items():
            if kind == "tensor":
                yield content
            else:
                yield from places(content)
