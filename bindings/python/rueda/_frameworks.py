"""What the bindings of JAX, Keras and TensorFlow have in common: words, checks of arguments, gradients."""

import warnings

from rueda import _ffi
from rueda.common.basics import Average

WORDS = {
    _ffi.ALLREDUCE: "allreduce",
    _ffi.ALLGATHER: "allgather",
    _ffi.BROADCAST: "broadcast",
    _ffi.REDUCESCATTER: "reducescatter",
    _ffi.ALLTOALL: "alltoall",
    _ffi.SEND: "send",
    _ffi.RECV: "recv",
    _ffi.BARRIER: "barrier",
}


def check_name(name):
    """ValueError for what names no operation; None is none."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"name={name!r}: expected a text that is not empty, or None")


def check_predivide(factor, op):
    """ValueError for a gradient_predivide_factor without an average."""
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average")


def check_groups(groups, num_groups):
    """ValueError for what are no groups in Horovod's sense; gradients are one group whatever they say."""
    if num_groups:
        warnings.warn("num_groups is deprecated, use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or isinstance(groups, list) or (isinstance(groups, int) and groups > 0):
        return
    raise ValueError(f"groups={groups!r}: expected a list of lists of variables, or a number above 0")


def list_of(layers):
    """Horovod's ``local_layers``: None, one layer, or several; ValueError for what is no layer."""
    if layers is None:
        return []
    layers = [layers] if hasattr(layers, "trainable_variables") else list(layers)
    if not all(hasattr(each, "trainable_variables") for each in layers):
        raise ValueError(f"local_layers={layers!r}: expected layers of Keras")
    return layers


def replaced(values, places, results):
    """A list of the values, with the results at these places."""
    values = list(values)
    for place, result in zip(places, results):
        values[place] = result
    return values
