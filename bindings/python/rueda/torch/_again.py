"""The short way for a blocking operation that came before in the same form (`Runtime.take`)."""

from torch import Tensor, empty_like, strided

from rueda._runtime import runtime

_take, _run = runtime.take, runtime.run


def run_again(kind, name, tensor, in_place, *rest):
    """The result, or None: then the ordinary way must be taken, which also says what is wrong.

    ``rest``: the fields of `Operation` that `Collectives` gives for this kind, in its order.
    """
    if type(tensor) is not Tensor or type(name) is not str or tensor.requires_grad:
        return None
    prepared = _take((kind, name, tensor.dtype, tensor.shape, *rest))
    if prepared is None:
        return None
    dense = tensor.is_cpu and tensor.layout is strided
    if not dense or not tensor.is_contiguous() or tensor.is_neg():
        prepared.put_back()
        return None
    output = tensor if in_place else empty_like(tensor)
    started = _run(prepared, tensor.data_ptr(), output.data_ptr(), (tensor, output))
    return output if started else None
