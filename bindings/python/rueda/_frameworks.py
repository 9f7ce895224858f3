"""What the bindings of JAX, Keras and TensorFlow have in common: words, checks of arguments, gradients."""

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


def check_count(what, value):
    """ValueError for what is no whole number, or less than 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what}={value!r}: expected a whole number, 1 or more")


def check_predivide(factor, op):
    """ValueError for a gradient_predivide_factor without an average."""
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average")


def list_of(layers):
    """Horovod's ``local_layers``: None, one layer, or a list of them."""
    if layers is None:
        return []
    return layers if isinstance(layers, (list, tuple)) else [layers]


def replaced(values, places, results):
    """A list of the values, with the results at these places."""
    values = list(values)
    for place, result in zip(places, results):
        values[place] = result
    return values
