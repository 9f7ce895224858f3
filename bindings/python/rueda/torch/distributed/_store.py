"""The c10d store of a job that ruedarun has started: the job's own, kept by the launcher. No port is opened."""

import ctypes
import itertools
from datetime import timedelta

import torch.distributed as dist

from rueda import _ffi
from rueda._runtime import runtime
from rueda.torch.distributed._start import USER, join

_lib = _ffi.library
_MOST_BYTES = 1 << 20  # of a value
_starts = itertools.count()
_stores = []  # PyTorch's C++ does not keep the Python part of a store alive


def meet_in_job(rank, size, timeout=timedelta(minutes=30), **_):
    """A rendezvous handler: yields (store, rank, size)."""
    runtime.init(user=USER)
    join(rank, size, None)
    store = JobStore(timeout) if size > 1 else dist.HashStore()
    _stores.append(store)
    # Every start of all ranks has keys of its own.
    yield dist.PrefixStore(f"c10d.{next(_starts)}", store), rank, size
    raise RuntimeError("ranks of a job that runs cannot meet anew")


class JobStore(dist.Store):
    """rueda_store as PyTorch wants one. Any thread; every call asks the launcher."""

    def __init__(self, timeout):
        super().__init__()
        self._seconds = timeout.total_seconds()

    def set(self, key, value):
        value = _bytes(value)
        self._ask(_lib.rueda_store_set, key, value, len(value))

    def get(self, key):
        return self._get(key, self._seconds)

    def add(self, key, amount):
        total = ctypes.c_int64()
        self._ask(_lib.rueda_store_add, key, amount, ctypes.byref(total))
        return total.value

    def compare_set(self, key, expected, desired):
        expected, desired = _bytes(expected), _bytes(desired)
        room, size, is_set = self._room(), ctypes.c_size_t(), ctypes.c_int32()
        self._ask(
            _lib.rueda_store_compare_set,
            key,
            expected,
            len(expected),
            desired,
            len(desired),
            ctypes.byref(is_set),
            room,
            len(room),
            ctypes.byref(size),
        )
        return room.raw[: size.value]

    def delete_key(self, key):
        was_set = ctypes.c_int32()
        self._ask(_lib.rueda_store_erase, key, ctypes.byref(was_set))
        return was_set.value != 0

    def check(self, keys):
        return all(self._is_set(key) for key in keys)

    def wait(self, keys, timeout=None):
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        for key in keys:
            self._get(key, seconds)

    def set_timeout(self, timeout):
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self):
        return timedelta(seconds=self._seconds)

    def _is_set(self, key):
        try:
            self._get(key, 0.0)
            return True
        except dist.DistStoreError:
            return False

    def _get(self, key, seconds):
        room, size = self._room(), ctypes.c_size_t()
        self._ask(_lib.rueda_store_get, key, seconds, room, len(room), ctypes.byref(size))
        if size.value > len(room):
            room = ctypes.create_string_buffer(_MOST_BYTES)
            self._ask(_lib.rueda_store_get, key, seconds, room, len(room), ctypes.byref(size))
        return room.raw[: size.value]

    @staticmethod
    def _room():
        return ctypes.create_string_buffer(4096)

    @staticmethod
    def _ask(function, key, *arguments):
        error = _ffi.Error()
        code = function(runtime.require_context(), key.encode(), *arguments, ctypes.byref(error))
        if code == _ffi.OK:
            return
        raised = _ffi.exception(code, error)
        if code == _ffi.DEADLINE_EXCEEDED:
            raised = dist.DistStoreError(str(raised))
        raise raised


def _bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)
