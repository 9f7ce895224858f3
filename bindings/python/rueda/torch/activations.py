"""How much memory autograd keeps from forward to backward."""

import collections
import threading

import torch

from rueda.torch._storages import plain_tensors
from rueda.torch.memory import storage_of


class measure_activations:
    """Counts, within a ``with`` block, the bytes that autograd keeps for backward.

    Tensors that operations save count by storage: from the first that saves one until backward, or the
    end of the graph, has given it up. Parameters and buffers of ``model`` do not count, nor what an
    operation has only while it runs, nor what a ``torch.autograd.Function`` keeps without
    ``save_for_backward``.

    >>> with hvd.measure_activations(model) as activations:
    ...     loss(model(x)).backward()
    >>> activations.peak

    Attributes
    ----------
    peak, now : int
        Bytes: the most at one time, and at this moment.
    """

    def __init__(self, model=None):
        self.peak, self._now = 0, 0
        self._lock = threading.Lock()
        self._given_up = collections.deque()  # what a destructor leaves, which may take no lock
        self._uses = {}  # storage: how often it is saved
        self._left_out = {
            _key(part) for tensor in _tensors_of(model) for part in plain_tensors(tensor)
        }
        self._hooks = None

    @property
    def now(self):
        with self._lock:
            self._settle()
        return self._now

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        # An operation's own result comes with the operation, which would keep itself alive through it.
        tensor = tensor.detach()
        storages = {}
        for part in plain_tensors(tensor):
            if _key(part) not in self._left_out:
                storages[_key(part)] = storage_of(part).nbytes()
        if not storages:
            return tensor
        with self._lock:
            self._settle()
            for key, nbytes in storages.items():
                uses = self._uses.get(key, 0)
                self._uses[key] = uses + 1
                if uses == 0:
                    self._now += nbytes
            self.peak = max(self.peak, self._now)
        return _Saved(tensor, storages, self._given_up)

    def _settle(self):
        while self._given_up:
            for key, nbytes in self._given_up.popleft().items():
                self._uses[key] -= 1
                if self._uses[key] == 0:
                    del self._uses[key]
                    self._now -= nbytes


def _tensors_of(model):
    if model is None:
        return []
    return [*model.parameters(), *model.buffers()]


def _key(tensor):
    return tensor.device, storage_of(tensor).data_ptr()


def _unpack(saved):
    return saved.tensor if isinstance(saved, _Saved) else saved


class _Saved:
    """One tensor that an operation has saved; autograd keeps it as long."""

    __slots__ = ("_storages", "_to", "tensor")

    def __init__(self, tensor, storages, to):
        self.tensor, self._storages, self._to = tensor, storages, to

    def __del__(self):
        self._to.append(self._storages)
