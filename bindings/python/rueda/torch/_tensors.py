"""The adapter for torch.Tensor: what `rueda._collectives` needs to know about one."""

import torch
from torch.autograd import forward_ad

from rueda._collectives import Collectives
from rueda._dtypes import CODES
from rueda._memory import memory_view
from rueda.torch._outside import outside_graphs

# Those that this PyTorch has: 8-bit floats since 2.1, larger unsigned integers since 2.3.
_DTYPES = {getattr(torch, name): code for name, code in CODES.items() if hasattr(torch, name)}


def _ask_stream(device):
    return torch.cuda.current_stream(device).cuda_stream


# PyTorch's own short way, which it uses for compiled code; a tenth of the time.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _ask_stream)


def is_plain(tensor):
    """Whether the library can work on it where it lies, in host memory, and autograd has no part."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def wants_gradient(tensor):
    """Whether autograd is to know what happens to a tensor."""
    return want_gradient((tensor,))


def want_gradient(tensors):
    """The same, of any of several. In forward mode, of all: autograd's functions say that there is none."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any([getattr(t, "requires_grad", False) for t in tensors])


def _version_counter():
    """PyTorch's function that counts a change of each tensor of a tuple. Before 2.1 there is none."""
    increment = getattr(torch._C, "_increment_version", None)
    if increment is None:
        return len
    try:
        increment((torch.zeros(1),))
        return increment
    except TypeError:  # it takes one tensor
        return lambda tensors: increment(tensors[0])


# Of tensors that the library writes to: autograd refuses what it has saved of them before.
increment_version = _version_counter()


def _will_change(tensor):
    if not tensor.is_inference():
        increment_version((tensor,))


class _DeviceBytes:
    """Memory of a GPU as the CUDA array interface shows it; lives as long as a tensor over it.

    Bytes, because the interface has no name for bfloat16.
    """

    def __init__(self, address, nbytes, owner):
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,  # without a stream: what has been given to it is waited for already
        }


class Tensors:
    """Dense tensors on the CPU or on a CUDA device. All others are refused with the reason."""

    @staticmethod
    def take(tensor):
        return tensor

    @staticmethod
    def describe(tensor):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
        if not (tensor.is_cpu or (tensor.is_cuda and torch.version.cuda)):
            raise ValueError(
                f"Tensor on device {tensor.device} is not supported. This version of rueda works "
                "on CPU and CUDA tensors: pass tensor.cpu()"
            )
        code = _DTYPES.get(tensor.dtype)
        if tensor.layout != torch.strided:
            raise ValueError(
                f"Tensor type {tensor.type()} is not supported. Use sparse_allreduce_async, or "
                "pass tensor.to_dense()"
            )
        if code is None:
            known = ", ".join(str(dtype).replace("torch.", "") for dtype in _DTYPES)
            raise ValueError(
                f"Tensor type {tensor.type()} is not supported. Supported are {known}"
            )
        return code

    @staticmethod
    def describe_in_place(tensor):
        code = Tensors.describe(tensor)
        _will_change(tensor)
        return code

    @staticmethod
    def shape(tensor):
        return tuple(tensor.shape)

    @staticmethod
    def address(tensor):
        return tensor.data_ptr()

    @staticmethod
    def nbytes(tensor):
        return tensor.numel() * tensor.element_size()

    @staticmethod
    def packed(tensor):
        # Lazy conjugates and negations are contiguous in memory that does not hold their values.
        return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()

    @staticmethod
    def pack(tensor):
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    @staticmethod
    def empty(shape, like):
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def awaited(tensor, like):
        like = tensor if like is None else like
        if not isinstance(like, torch.Tensor):
            raise ValueError(f"like: expected a torch.Tensor, got {type(like).__name__}")
        if wants_gradient(tensor):
            raise RuntimeError(
                "sendrecv has no gradient, but the tensor requires one: send tensor.detach(), or call it "
                "under torch.no_grad()"
            )
        return torch.empty(like.shape, dtype=like.dtype, device=tensor.device)

    @staticmethod
    def check_out(out, tensor):
        Tensors.describe(out)
        _will_change(out)
        if wants_gradient(tensor) or wants_gradient(out):
            raise RuntimeError(
                "out= has no gradient, but the tensor or out requires one: leave out= away, or call "
                "it under torch.no_grad()"
            )

    @staticmethod
    def adopt(address, shape, like, owner):
        count = 1
        for extent in shape:
            count *= extent
        if count == 0:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        if like.is_cuda:
            block = _DeviceBytes(address, count * like.element_size(), owner)
            return torch.as_tensor(block, device=like.device).view(like.dtype).view(shape)
        view = memory_view(address, count * like.element_size(), owner)
        flat = torch.frombuffer(view, dtype=like.dtype)
        return flat if len(shape) == 1 else flat.view(shape)

    @staticmethod
    def read_splits(splits):
        if splits is None:
            return None
        if not isinstance(splits, torch.Tensor):
            splits = torch.tensor(splits, dtype=torch.int32)
        if splits.dtype != torch.int32 or splits.dim() != 1:
            raise ValueError("alltoall: splits must be a one-dimensional int32 tensor or a list")
        return splits.tolist()

    @staticmethod
    def splits(counts):
        return torch.tensor(counts, dtype=torch.int32)

    @staticmethod
    def place(tensor):
        if tensor.is_cpu:
            return -1, None
        return tensor.device.index, Tensors.stream(tensor.device.index)

    @staticmethod
    def stream(device):
        return _raw_stream(device)


collectives, blocking = Collectives(Tensors), Collectives(Tensors, wait=True)

for _name in vars(Collectives):
    if not _name.startswith("_"):
        outside_graphs(getattr(Collectives, _name))
