"""The fast path of one dense gradient: reduced where it lies, time after time.

Most gradients of most models go this way in every step, so it is kept short: one object for each
parameter, and no more than an address handed to the library. What is new, lies otherwise or has
another form than last time goes the ordinary way (`_policies.Dense`), which also makes the request.
"""

import sys
import time
import weakref

import torch

from rueda import _ffi
from rueda._requests import SLICE
from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch._tensors import Tensors, collectives

_lib = _ffi.library
_take, _start = runtime.take, _lib.rueda_request_start
_wait, _OK = _lib.rueda_request_wait, _ffi.OK
_Tensor, _strided = torch.Tensor, torch.strided


def in_place_of(gradient, name, settings):
    """The fast path for gradients of the form and at the kind of place that this one has now."""
    device, _ = Tensors.place(gradient.parameter.grad)
    return (InPlace if device < 0 else InPlaceOnDevice)(gradient, name, settings, device)


class InPlace:
    """As a `Reduction`, but used again. Of a gradient in host memory.

    Parameters
    ----------
    gradient : Gradient
    name : str
        Of the operation.
    settings : Settings
    device : int
    """

    __slots__ = (
        "_buffer",
        "_device",
        "_dtype",
        "_grad",
        "_gradient",
        "_key",
        "_parameter",
        "_request",
        "_set",
        "_set_key",
        "_shape",
        "_under_way",
        "_version",
        "gradients",
    )

    def __init__(self, gradient, name, settings, device):
        p = gradient.parameter
        self._gradient = gradient
        self.gradients = [gradient]
        self._parameter = weakref.ref(p)
        self._buffer = gradient.buffer
        self._dtype, self._shape = p.grad.dtype, p.grad.shape
        self._set, self._set_key = settings.process_set, settings.process_set.key
        self._device = device
        kind = _ffi.ALLREDUCE if device < 0 else (_ffi.ALLREDUCE, device)
        fields = settings.op, settings.prescale, settings.postscale, self._set_key
        self._key = (kind, name, self._dtype, self._shape, *fields)
        self._grad = None  # what travels
        self._version = 0
        self._request = None  # this gradient's alone, once there is one
        self._under_way = False

    def start(self, p):
        """Whether the parameter's gradient is on its way now."""
        if self._under_way:
            self._hand_over()
        if self._buffer is not None:
            self._buffer.bring(p)
        grad = p.grad
        if not (
            type(grad) is _Tensor
            and grad.is_cpu
            and grad.dtype is self._dtype
            and grad.layout is _strided
            and grad.shape == self._shape
            and grad.is_contiguous()
            and not grad.requires_grad
            and not grad.is_neg()
            and self._set.key is self._set_key
        ):
            return False
        request = self._request
        if request is None or request._cache is not runtime._persistent:  # it is of a job that was left
            request = self._request = _take(self._key)
            if request is None:
                return False
        # Held from before it starts: an interrupt between the lines must not free it.
        self._grad, self._version, self._under_way = grad, grad._version, True
        address = grad.data_ptr()
        return _start(request.pointer, address, address, None, None) == _OK or self._not_started()

    def _not_started(self):
        """The ordinary way makes another one, or says what is wrong."""
        self._grad, self._request, self._under_way = None, None, False
        return False

    def is_wanted(self):
        return self._parameter().grad is self._grad

    def wait(self):
        if self._under_way:
            request = self._request
            if _wait(request.pointer, SLICE, None) != _OK:
                request.wait()  # goes on, or says how it failed
            self._under_way = False

    def end(self):
        self.wait()
        grad = self._grad
        if self._parameter().grad is grad and (grad._version == self._version or grad._is_view()):
            return ()  # the result lies where the gradient does
        return self.gradients

    def let_go(self):
        self._gradient.reduction = None
        if self._under_way:
            self._hand_over()
        self._grad = None

    def _hand_over(self):
        """After an interrupt nobody may have waited: the runtime keeps the gradient until it has ended."""
        runtime.hold((self._request,), self._grad)
        self._request, self._under_way = None, False

    def give_up(self, end):
        if not self._under_way:
            return
        try:
            self._request.wait(max(0.0, end - time.monotonic()))
            self._under_way = False
        except (HorovodInternalError, DeadlineExceeded):
            self._hand_over()

    def __del__(self, is_finalizing=sys.is_finalizing):
        # An interrupt came before the step knew of it, and the optimizer is dropped. At the end of Python the
        # job has been left. No attribute: an interrupt came while it was made.
        if getattr(self, "_under_way", False) and not is_finalizing():
            self._hand_over()


class InPlaceOnDevice(InPlace):
    """Of a gradient on a GPU."""

    __slots__ = ("_stream",)  # the one that the gradient was computed in

    def start(self, p):
        if self._under_way:
            self._hand_over()
        grad = p.grad
        if type(grad) is not _Tensor or grad.layout is not _strided or grad.requires_grad:
            return False
        device, self._stream = Tensors.place(grad)
        if (
            device != self._device
            or grad.dtype is not self._dtype
            or grad.shape != self._shape
            or not Tensors.packed(grad)
            or self._set.key is not self._set_key
        ):
            return False
        request = self._request
        if request is None or request._cache is not runtime._persistent:  # it is of a job that was left
            request = self._request = _take(self._key)
            if request is None:
                return False
        self._grad, self._version, self._under_way = grad, grad._version, True
        address = grad.data_ptr()
        code = _start(request.pointer, address, address, self._stream, None)
        return code == _OK or self._not_started()

    def wait(self):
        if self._under_way:
            self._request.wait()
            collectives.go_on_behind([self._request], self._device, self._stream)
            self._under_way = False
