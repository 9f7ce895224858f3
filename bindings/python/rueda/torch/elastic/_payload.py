"""Values of one rank as bytes, and back: tensors as they lie in memory, first, so that those that stay the same stay in their places."""

import io
import pickle

import torch

from rueda._numpy import np
from rueda.torch.elastic._sharing import bytes_of

_ALIGNMENT = 64


def pack(values):
    """Bytes, as an array of uint8, of anything that can be pickled and may have tensors in it."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=4)
    pickler.dump(values)
    rest = np.frombuffer(stream.getvalue(), np.uint8)
    array = np.zeros(_ALIGNMENT + pickler.end + rest.size, np.uint8)
    array[:8] = np.frombuffer(np.int64(pickler.end).tobytes(), np.uint8)
    for first, tensor in pickler.tensors:
        content = bytes_of(tensor)
        array[_ALIGNMENT + first : _ALIGNMENT + first + content.size] = content
    array[_ALIGNMENT + pickler.end :] = rest
    return array


def unpack(array):
    """What was packed; nothing of it is the array's memory."""
    end = int(np.frombuffer(array[:8].tobytes(), np.int64)[0])
    return _Unpickler(io.BytesIO(array[_ALIGNMENT + end :].tobytes()), array[_ALIGNMENT : _ALIGNMENT + end]).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream, protocol):
        super().__init__(stream, protocol)
        self.tensors, self.end = [], 0

    def persistent_id(self, value):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return None
        content = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        first, size = self.end, content.numel() * content.element_size()
        self.tensors.append((first, content))
        self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        kind = isinstance(value, torch.nn.Parameter), value.requires_grad
        return first, size, content.dtype, tuple(content.shape), str(value.device), kind


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, content):
        super().__init__(stream)
        self._content = content

    def persistent_load(self, place):
        first, size, dtype, shape, device, (is_parameter, requires_grad) = place
        tensor = torch.empty(shape, dtype=dtype)
        bytes_of(tensor)[:] = self._content[first : first + size]
        tensor = tensor.to(device)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor
