"""Options and scalars of an optimizer as JSON, which has neither tuples, tensors nor infinity."""

import math

import torch

from rueda.torch import _safetensors


def encoded(value):
    """ValueError names what has no form in JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        flat = [encoded(each) for each in value.detach().reshape(-1).tolist()]
        return {"tensor": flat, "shape": list(value.shape), "dtype": _safetensors.dtype_name(value.dtype)}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [encoded(each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _of_key(key, each) for key, each in value.items()}}
    raise ValueError(f"a {type(value).__name__} ({value!r:.60}) of an optimizer cannot be saved")


def _of_key(key, value):
    try:
        return encoded(value)
    except ValueError as error:
        raise ValueError(f"{key!r}: {error}") from None


def decoded(value):
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: decoded(each) for key, each in value["dict"].items()}
    if "float" in value:
        return float(value["float"])
    if "tensor" in value:
        flat = [decoded(each) for each in value["tensor"]]
        return torch.tensor(flat, dtype=_safetensors.dtype_called(value["dtype"])).reshape(value["shape"])
    if "tuple" in value:
        return tuple(decoded(each) for each in value["tuple"])
    return [decoded(each) for each in value["list"]]
