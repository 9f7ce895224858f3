"""Reads files of ``torch.save`` that have objects of DeepSpeed in them, and runs none of their code.

A pickle names functions and classes that are called while it is read. Here only those that make tensors and plain
containers are; classes of DeepSpeed come as `Inert` objects. Whatever else is named is an error.
"""

import collections
import pickle
import types
import zipfile

import torch


def _rebuild_from_type(rebuild, kind, values, state):
    """Of a tensor that had attributes: without them."""
    return rebuild(*values)


_ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    ("builtins", "set"): set,
    ("builtins", "complex"): complex,
    ("torch", "Size"): torch.Size,
    ("torch", "Tensor"): torch.Tensor,
    ("torch", "device"): torch.device,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
}


class Inert:
    """Stands for an object of a class that is not loaded; has what was saved of it."""

    def __init__(self, *values, **named):
        self.values = values

    def __setstate__(self, state):
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.split(".")[0] == "deepspeed" and "." not in name:
            return type(name, (Inert,), {})
        raise pickle.UnpicklingError(f"names {module}.{name}, which could run any code")


def _module():
    """What ``torch.load`` takes as a pickle module."""

    def load(file, **options):
        return _Unpickler(file, **options).load()

    return types.SimpleNamespace(Unpickler=_Unpickler, load=load, __name__=__name__)


def load(path, mapped=True):
    """The object in a file of ``torch.save``; its tensors are ``mapped``, not read, where PyTorch can.

    ValueError names the file if it is none, or wants more than it may.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} was not written by torch.save, or was cut off: {error}") from error
    if not any(name.endswith("/data.pkl") for name in names) or any(name.endswith("/constants.pkl") for name in names):
        raise ValueError(f"{path} was not written by torch.save")
    options = {"map_location": "cpu", "pickle_module": _module()}
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= (1, 13):
        options["weights_only"] = False
    if mapped and version >= (2, 1):
        options["mmap"] = True
    try:
        return torch.load(path, **options)
    except (pickle.UnpicklingError, AttributeError, EOFError, TypeError, IndexError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not read: it {error}") from error
