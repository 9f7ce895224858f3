"""Which local kernel computes: PyTorch's own among them."""

import collections
import ctypes

from rueda import _ffi
from rueda.attention._plans import _DTYPES, _choice

_lib = _ffi.library

Kernel = collections.namedtuple("Kernel", "name why")


def _check(code, error):
    if code != _ffi.OK:
        raise _ffi.exception(code, error)


def kernel_for(dtype="float32", head_dim=64, device="cpu"):
    """The kernel that calls of this dtype use in this process, and why: (name, why).

    Parameters
    ----------
    dtype : {"float32", "bfloat16", "float16"} or torch.dtype
    head_dim : int
        1 to 256. Matters where kernels are measured.
    device : str or torch.device
        "cuda": the kernel of GPU tensors, and what refuses those before it in the list.
    """
    code = _choice(str(dtype).replace("torch.", ""), _DTYPES, "dtype")
    if not 1 <= head_dim <= 256:
        raise ValueError(f"head_dim is {head_dim}, 1 to 256 are supported")
    if str(device) != "cpu":
        return Kernel(*_of_devices().kernel_for(str(dtype).replace("torch.", ""), head_dim, device))
    name, why = ctypes.create_string_buffer(64), ctypes.create_string_buffer(512)
    error = _ffi.Error()
    _check(
        _lib.rueda_attention_kernel_for(
            code, code, head_dim, name, len(name), why, len(why), ctypes.byref(error)
        ),
        error,
    )
    return Kernel(name.value.decode(), why.value.decode())


def _of_devices():
    from rueda.attention import device  # PyTorch's

    return device


def use_kernel(name="auto", device="cpu"):
    """From now on all calls of this process choose so, as ``RUEDA_ATTENTION_KERNEL`` says it.

    Parameters
    ----------
    name : str
        "auto", "measured" (the fastest; timed at the first call of each dtype and class of head_dim) or
        the name of a kernel: "native", "avx512bf16", "aten" (PyTorch's own, once torch is imported).
    device : str or torch.device
        "cuda": for GPU tensors, whose kernels are "cudnn", "flash3", "flash2", "flash", "efficient" and "torch".

    Raises
    ------
    ValueError
        This machine has no such kernel; the message lists those that it has.
    """
    if str(device) != "cpu":
        _of_devices().use_kernel(name, device)
        return
    error = _ffi.Error()
    _check(_lib.rueda_attention_use_kernel(name.encode(), ctypes.byref(error)), error)
