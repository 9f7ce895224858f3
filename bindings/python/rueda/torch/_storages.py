"""Tensors counted by the memory that they lie in: what several look at counts once."""

import torch

from rueda._process_memory import SharedMappings
from rueda.torch.memory import storage_of


def plain_tensors(value):
    """The tensors with memory that a tensor consists of, or that there are in dicts, lists and tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from plain_tensors(each)
    elif not isinstance(value, torch.Tensor):
        return
    elif hasattr(value, "__tensor_flatten__"):  # a subclass that wraps others: DTensor, torchao's
        for name in value.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(value, name))
    elif value.layout is torch.sparse_coo:
        yield from (value._indices(), value._values())
    elif value.layout is torch.strided and value.device.type != "meta":
        yield value


class Storages:
    """Sums of bytes by name. A storage counts where it is met first.

    Attributes
    ----------
    sums : dict of str to int
        What this process sees, shared or its own.
    shared : list of (str, place, int)
        Of these, what other processes may see too: name, `SharedMappings.place`, bytes.
    """

    def __init__(self):
        self.sums, self.shared = {}, []
        self._seen = set()
        self._mappings = SharedMappings.of_this_process()

    def count(self, name, tensors):
        self.sums.setdefault(name, 0)
        for tensor in plain_tensors(tensors):
            storage = storage_of(tensor)
            key, nbytes = (tensor.device, storage.data_ptr()), storage.nbytes()
            if nbytes == 0 or key in self._seen:
                continue
            self._seen.add(key)
            self.sums[name] += nbytes
            place = self._mappings.place(key[1]) if tensor.is_cpu else None
            if place is not None:
                self.shared.append((name, place, nbytes))
