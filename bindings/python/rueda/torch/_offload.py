"""Where tensors lie that are not needed until backward: in host memory, or in a file."""

import os
import tempfile
import threading

import torch

from rueda.torch._files import read_all, write_all

SMALLEST = 64 << 10  # bytes that are worth it


def hooks_for(offload):
    """(pack, unpack) of ``torch.autograd.graph.saved_tensors_hooks`` for "cpu" or a folder."""
    if offload == "cpu":
        return _to_host, _back
    if not (isinstance(offload, (str, os.PathLike)) and os.path.isdir(offload)):
        raise ValueError(f"offload={offload!r}: there are 'cpu', a folder that exists, and None")
    file = _File.of(os.path.realpath(offload))
    return file.pack, _back


def _stays(tensor):
    """Small ones, parameters, and what has no plain memory."""
    is_parameter = tensor.is_leaf and tensor.requires_grad
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return is_parameter or not plain or tensor.numel() * tensor.element_size() < SMALLEST


def _back(kept):
    return kept() if callable(kept) else kept


def _to_host(tensor):
    if tensor.is_cpu or _stays(tensor):
        return tensor.detach()
    device = tensor.device
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
    copy.copy_(tensor)
    return lambda: copy.to(device)


class _File:
    """Of one process and folder, without a name. Used again from its beginning when nothing is in it."""

    _files = {}
    _lock = threading.Lock()

    @classmethod
    def of(cls, folder):
        with cls._lock:
            key = os.getpid(), folder  # a forked child would write into its parent's
            if key not in cls._files:
                cls._files[key] = cls(folder)
            return cls._files[key]

    def __init__(self, folder):
        self._file = tempfile.TemporaryFile(dir=folder, prefix="rueda-activations-")
        self._lock = threading.RLock()  # a destructor may come while it is held
        self._pieces, self._end = 0, 0

    def pack(self, tensor):
        if _stays(tensor):
            return tensor.detach()
        values = tensor.detach().cpu().contiguous()
        return _Piece(self, values, tensor.device)

    def write(self, values):
        """Where it has written them."""
        with self._lock:
            begin = self._end
            self._end += values.nbytes
            self._pieces += 1
        write_all(self._file.fileno(), memoryview(values).cast("B"), begin)
        return begin

    def read(self, values, begin):
        if not read_all(self._file.fileno(), memoryview(values).cast("B"), begin):
            raise OSError("the file of activations has been cut")

    def free(self):
        with self._lock:
            self._pieces -= 1
            if self._pieces == 0:
                self._end = 0


class _Piece:
    """A tensor in the file."""

    def __init__(self, file, values, device):
        self._file = None
        self._form, self._device = (values.shape, values.dtype), device
        self._begin = file.write(_bytes_of(values))
        self._file = file

    def __call__(self):
        shape, dtype = self._form
        values = torch.empty(shape, dtype=dtype)
        self._file.read(_bytes_of(values), self._begin)
        return values.to(self._device)

    def __del__(self):
        if self._file is not None:
            self._file.free()


def _bytes_of(values):
    return values.view(-1).view(torch.uint8).numpy()
