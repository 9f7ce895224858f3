"""An optimizer's state dict without its tensors, so that they can travel as tensors."""

import io
import pickle

import torch


class _Writer(pickle.Pickler):
    """Writes shape, dtype and kind of device of each tensor.

    Sparse ones, whose memory depends on their values, are written as they are.
    """

    def __init__(self, stream, tensors):
        super().__init__(stream, protocol=4)
        self._tensors = tensors

    def persistent_id(self, obj):
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
            return None
        self._tensors.append(obj)
        return len(self._tensors) - 1, tuple(obj.shape), obj.dtype, obj.device.type

    def reducer_override(self, obj):
        if isinstance(obj, torch.Tensor):  # a sparse one: its parts are no tensors of the state
            return pickle.loads, (pickle.dumps(obj, protocol=4),)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Puts tensors where tensors were: those that are there already where they fit, else empty ones."""

    def __init__(self, stream, there):
        super().__init__(stream)
        self._there, self.tensors = there, []

    def persistent_load(self, pid):
        index, shape, dtype, device = pid
        if index == len(self.tensors):  # a tensor that occurs twice is written once per place
            mine = self._there[index] if index < len(self._there) else None
            fits = mine is not None and (tuple(mine.shape), mine.dtype, mine.device.type) == (shape, dtype, device)
            self.tensors.append(mine if fits else torch.empty(shape, dtype=dtype, device=device))
        return self.tensors[index]


class Outline:
    """Of one optimizer; ``tensors`` are those that belong to what was read or filled last."""

    def __init__(self, optimizer):
        self.optimizer, self.tensors = optimizer, []

    def read(self):
        """The state dict as bytes."""
        self.tensors = []
        stream = io.BytesIO()
        _Writer(stream, self.tensors).dump(self.optimizer.state_dict())
        return stream.getvalue()

    def fill(self, data):
        """The state dict of another rank's bytes; its tensors' contents are to come."""
        reader = _Reader(io.BytesIO(data), self.tensors)
        state = reader.load()
        self.tensors = reader.tensors
        return state
