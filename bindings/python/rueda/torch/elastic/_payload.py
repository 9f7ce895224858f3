"""Values of one rank as bytes, and back: tensors as they lie in memory, first, so that those that stay the same stay in their places.

A tensor that is in several places comes back as one; views of different parts of the same memory come back apart.
"""

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


def unpack(array, device_of=None):
    """What was packed; nothing of it is the array's memory.

    ``device_of``: of the name of the device on which a tensor was, gives that on which it is to be; without it all are in
    host memory.
    """
    end = int(np.frombuffer(array[:8].tobytes(), np.int64)[0])
    content = array[_ALIGNMENT : _ALIGNMENT + end]
    return _Unpickler(io.BytesIO(array[_ALIGNMENT + end :].tobytes()), content, device_of).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream, protocol):
        super().__init__(stream, protocol)
        self.tensors, self.end = [], 0
        self._known = {}  # which memory, seen how: (its place, a tensor that holds it)

    def persistent_id(self, value):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return None
        kind = isinstance(value, torch.nn.Parameter), value.requires_grad
        seen = value.data_ptr(), str(value.device), value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg(), kind
        key = seen if value.numel() else id(value)
        if key not in self._known:
            self._known[key] = self._place(value, kind), value
        return self._known[key][0]

    def _place(self, value, kind):
        content = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        first, size = self.end, content.numel() * content.element_size()
        self.tensors.append((first, content))
        self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return len(self.tensors), first, size, content.dtype, tuple(content.shape), str(value.device), kind


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, content, device_of):
        super().__init__(stream)
        self._content, self._device_of, self._known = content, device_of, {}

    def persistent_load(self, place):
        number, first, size, dtype, shape, device, (is_parameter, requires_grad) = place
        if number in self._known:
            return self._known[number]
        tensor = torch.empty(shape, dtype=dtype)
        bytes_of(tensor)[:] = self._content[first : first + size]
        if self._device_of is not None:
            tensor = tensor.to(self._device_of(device))
        if is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad)
        elif requires_grad:
            tensor.requires_grad_()
        self._known[number] = tensor
        return tensor
