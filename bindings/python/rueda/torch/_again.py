"""The short way for a blocking operation that came before in the same form (`Runtime.take`)."""

from torch import empty_like

from rueda._runtime import runtime
from rueda.torch._tensors import is_plain

_take, _run = runtime.take, runtime.run


def run_again(kind, name, tensor, in_place, *rest):
    """The result, or None: then the ordinary way must be taken, which also says what is wrong.

    ``rest``: the fields of `Operation` that `Collectives` gives for this kind, in its order.
    """
    if type(name) is not str or not is_plain(tensor):
        return None
    prepared = _take((kind, name, tensor.dtype, tensor.shape, *rest))
    if prepared is None:
        return None
    output = tensor if in_place else empty_like(tensor)
    started = _run(prepared, tensor.data_ptr(), output.data_ptr(), (tensor, output))
    return output if started else None
