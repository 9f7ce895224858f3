"""The straight way of one dense gradient: reduced where it lies, time after time.

Most gradients of most models go this way in every step, so it is kept short: one object for each
parameter, and no more than an address handed to the library. What is new, lies otherwise or has
another form than last time goes the ordinary way (`optimizer._reduce`), which also prepares this.
"""

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common.process_sets import id_for_operation
from rueda.torch._reduction import Reduction, _version
from rueda.torch._tensors import Tensors, is_plain_anywhere

_start, _wait = runtime.start_in_place, runtime.synchronize


class StraightReduction(Reduction):
    """A `Reduction` that is used again, for one parameter.

    Parameters
    ----------
    p : torch.nn.Parameter
    name : str
        Of the operation.
    op, prescale, postscale, process_set
        As of `rueda.torch.allreduce`.
    homes : GradientBuffers or None
        Where gradients are brought before they are reduced.
    """

    def __init__(self, p, name, op, prescale, postscale, process_set, homes):
        self.parameters = [p]
        self.handles = ()
        self._p = p
        self._grad = None  # what travels
        self._version = 0
        self._name = name
        self._rest = (op, prescale, postscale)
        self._set = process_set
        self._homes = homes
        self._key = (None,) * 4
        self._device = -1
        self._stream = None  # of a GPU: the one that the gradient was computed in

    def start(self):
        """Whether the parameter's gradient is on its way now."""
        if self._homes is not None:
            self._homes.bring(self._p)
        grad = self._p.grad
        if not is_plain_anywhere(grad):
            return False
        device, stream = Tensors.place(grad)
        key = self._key
        if (
            grad.dtype is not key[2]
            or grad.shape != key[3]
            or key[-1] is not self._set.key
            or device != self._device
        ):
            id_for_operation(self._set)  # an error if the set is no more
            kind = _ffi.ALLREDUCE if device < 0 else (_ffi.ALLREDUCE, device)
            key = (kind, self._name, grad.dtype, grad.shape, *self._rest, self._set.key)
            self._key, self._device = key, device
        if device < 0:
            handle = _start(key, grad.data_ptr(), grad)
        else:
            self._stream = stream
            handle = _start(key, grad.data_ptr(), grad, self._go_on_behind, device, stream)
        if handle is None:
            return False
        self.handles = (handle,)
        self._grad, self._version = grad, _version(grad)
        return True

    def is_wanted(self):
        return self._p.grad is self._grad

    def touched(self):
        if self._p.grad is self._grad and _version(self._grad) == self._version:
            return ()
        return self.parameters

    def wait(self):
        _wait(self.handles[0])

    def _go_on_behind(self, works):
        """As `Collectives.go_on_behind`."""
        streams = {Tensors.stream(self._device) or 0, self._stream or 0}
        for stream in streams:
            works[0].make_wait(stream)

    def write(self):
        """The result lies where the gradient does."""

    def let_go(self):
        self._grad = None
