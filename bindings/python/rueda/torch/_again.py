"""The short way for a blocking operation that came before in the same form (`Runtime.take`).

Not while a profiler listens: it is told of the ordinary way.
"""

from torch import empty_like
from torch.autograd import forward_ad

from rueda import _replay
from rueda._forms import Form
from rueda._runtime import runtime
from rueda.torch._ranges import is_on
from rueda.torch._tensors import Tensors, increment_version, is_plain

_take, _run, _run_alike = runtime.take, runtime.run, runtime.run_alike
_adopt = Tensors.adopt


def run_again(kind, name, tensor, out, *rest):
    """The result, or None: then the ordinary way must be taken, which also says what is wrong.

    ``out``: as in `Collectives`. ``rest``: the fields of `Operation` that it gives for this kind, in
    its order.
    """
    if _replay.entered or is_on() or (name is not None and type(name) is not str):
        return None
    if forward_ad._current_level >= 0 or not is_plain(tensor):
        return None
    if out is not None and out is not tensor and not _can_take(out, tensor):
        return None
    request = _take((kind, name, tensor.dtype, tensor.shape, *rest))
    if request is None:
        return None
    if out is None:
        output = empty_like(tensor)
    else:
        output = out
        if not out.is_inference():
            increment_version((out,))
    run = _run_alike if name is None else _run
    started = run(request, tensor.data_ptr(), output.data_ptr(), (tensor, output))
    return output if started else None


def receive_again(kind, name, tensor, *rest):
    """The same of an operation whose result is the library's memory."""
    if _replay.entered or is_on() or (name is not None and type(name) is not str):
        return None
    if forward_ad._current_level >= 0 or not is_plain(tensor):
        return None
    form = _take((kind, name, tensor.dtype, tensor.shape, *rest))
    if form is None:
        return None
    if type(form) is not Form:
        form.put_back()
        return None
    return _run_alike(form, tensor.data_ptr(), None, tensor, _adopt)


def _can_take(out, tensor):
    """Whether a result of the tensor's form can be written to ``out``."""
    if not is_plain(out) or out.dtype is not tensor.dtype or out.shape != tensor.shape:
        return False
    distance = abs(out.data_ptr() - tensor.data_ptr())
    return distance == 0 or distance >= tensor.numel() * tensor.element_size()
