"""Copies of tensors in host memory as plain bytes, in half of the time that one thread of `torch.Tensor.copy_` takes."""

import ctypes

import torch

_BRIEF = 1 << 20  # bytes: to let go of the interpreter's lock for less would be to wait for it longer
_LARGE = 16 << 20  # bytes: for which PyTorch uses all of its threads
_move = ctypes.PyDLL(None).memmove
_move.restype, _move.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def moved(target, source):
    """Copies ``source`` into ``target``, of its dtype and shape, if both are plain bytes without gaps; returns whether it did.

    No version counts it, and autograd does not see it.
    """
    if not (_is_plain(target) and _is_plain(source)):
        return False
    nbytes = source.numel() * source.element_size()
    if nbytes >= _LARGE and torch.get_num_threads() > 2:
        return False  # each thread of PyTorch's has about half of this one's speed
    (_move if nbytes < _BRIEF else ctypes.memmove)(target.data_ptr(), source.data_ptr(), nbytes)
    return True


def copy(target, source):
    """`torch.Tensor.copy_`, as plain bytes where that can be; returns ``target``."""
    return target if moved(target, source) else target.copy_(source)


def _is_plain(tensor):
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return tensor.is_contiguous() and not (tensor.is_quantized or tensor.is_neg() or tensor.is_conj())
