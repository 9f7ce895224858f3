"""A model that computes in 16 bits, with parameters of float32.

Parameters stay float32, which is what DeepSpeed calls master weights. In each forward the model runs on 16-bit copies of
them, made by autograd; so gradients are computed in 16 bits, as in DeepSpeed, and arrive, are summed and reduced in
float32, where DeepSpeed may use 16 bits. Floating-point buffers become 16-bit, as there.
"""

import contextlib
import functools

import torch

from rueda.torch.checkpointing import entered_again


def convert_buffers(model, dtype):
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def narrow_floats(value, dtype):
    """fp16.auto_cast: floating-point tensors of a batch as the model computes."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return type(value)((key, narrow_floats(each, dtype)) for key, each in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(narrow_floats(each, dtype) for each in value)
    return value


def call(model, dtype, args, kwargs):
    """The model's result, computed in ``dtype``."""
    wide = [p for p in model.parameters() if p.is_floating_point() and p.dtype != dtype]
    copies = {p: p.to(dtype) for p in wide}
    with entered_again(functools.partial(_in_their_place, model, copies)):
        return model(*args, **kwargs)


@contextlib.contextmanager
def _in_their_place(model, copies):
    """Each parameter of the model is its copy meanwhile."""
    places = [
        (owner, name, p)
        for owner in model.modules()
        for name, p in owner._parameters.items()
        if p is not None and p in copies
    ]
    lists = [(owner, owner._flat_weights) for owner in model.modules() if isinstance(owner, torch.nn.RNNBase)]
    try:
        for owner, name, p in places:
            owner._parameters[name] = copies[p]
        for owner, weights in lists:
            owner._flat_weights = [copies.get(p, p) for p in weights]
        yield
    finally:
        for owner, weights in lists:
            owner._flat_weights = weights
        for owner, name, p in places:
            owner._parameters[name] = p
