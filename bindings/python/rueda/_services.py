"""What the library does for a rank besides operations: counts, timelines, process sets, memory, kernels."""

import ctypes
import os

from rueda import _ffi, _marks
from rueda._membership import Membership, not_initialized, own_name
from rueda._requests import Request
from rueda.common.exceptions import HorovodInternalError

_lib = _ffi.library


def _is_real(name):
    """Of a number among the stats."""
    return "seconds" in name or name.endswith("_share")


class Services(Membership):
    """Threads: as `Membership`."""

    _stats = []  # name and type of each

    def counter(self, name):
        context = self.require_context()
        value = _lib.rueda_counter(context, name.encode())
        if value < 0:  # there is none, or another thread has shut down
            self._require_same(context)
        return value

    def counters(self):
        """All of them, by name."""
        context = self.require_context()
        values = (ctypes.c_int64 * max(0, _lib.rueda_counters(context, None, 0)))()
        if _lib.rueda_counters(context, values, len(values)) != len(values):
            self._require_same(context)
        return {_lib.rueda_counter_name(i).decode(): value for i, value in enumerate(values)}

    def stats(self, reset):
        """`rueda.stats` of this rank."""
        context = self.require_context()
        ranks, seconds = (ctypes.c_int32 * 64)(), (ctypes.c_double * 64)()
        late = _lib.rueda_late_ranks(context, ranks, seconds, 64)
        values, transport = (_ffi.Stat * 64)(), _lib.rueda_transport(context)
        count = _lib.rueda_stats(context, values, len(values), reset)
        if count < 0 or transport is None:
            self._require_same(context)
        if len(self._stats) != count:
            names = [values[i].name.decode() for i in range(count)]
            self._stats = [(name, float if _is_real(name) else int) for name in names]
        found = {name: number(values[i].value) for i, (name, number) in enumerate(self._stats)}
        found["late_ranks"] = {ranks[i]: seconds[i] for i in range(max(0, late))}
        found["transport"] = transport.decode()
        return found

    def lost(self, rank=-1):
        """The `_ffi.Lost` of the rank that was lost first, or None.

        ``rank``: whom an error is about; what is known of it where there is no verdict yet.
        """
        context, lost = self._context, _ffi.Lost()
        lost.rank = rank
        if context is None or not _lib.rueda_lost_rank(context, ctypes.byref(lost)):
            return None
        return lost

    def start_timeline(self, path, mark_cycles):
        """ValueError when not initialised, or when the file cannot be written."""
        name, error = os.fsencode(path), _ffi.Error()
        if b"\0" in name:
            raise ValueError(f"the timeline's file name has a zero byte: {path!r}")
        context = self._initialized_context()
        code = _lib.rueda_start_timeline(
            context, name, 1 if mark_cycles else 0, ctypes.byref(error)
        )
        self._follow(context)
        if code != _ffi.OK:
            raise ValueError(error.message.decode("utf-8", "replace"))

    def stop_timeline(self):
        """ValueError when not initialised."""
        context = self._initialized_context()
        _lib.rueda_stop_timeline(context, None)
        self._follow(context)

    def _follow(self, context):
        with self._joining:
            if context is self._context:  # else another thread has shut down
                _marks.follow(context)

    def int8(self, what, source, target, blocks, device, stream):
        """Gives ``what``, "quantize" or "dequantize", to a GPU's stream; False: there are no kernels."""
        error = _ffi.Error()
        code = getattr(_lib, "rueda_int8_" + what)(
            self.require_context(), source, target, blocks, device, stream, ctypes.byref(error)
        )
        if code not in (_ffi.OK, _ffi.UNIMPLEMENTED):
            raise _ffi.exception(code, error)
        return code == _ffi.OK

    def open_cuda_pool(self, device):
        """From now on `rueda_cuda_pool_allocate` gives memory of a GPU. NotImplementedError: NCCL gives none."""
        error = _ffi.Error()
        code = _lib.rueda_cuda_pool_open(self.require_context(), device, ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)

    def allocate(self, nbytes, zeroed=True):
        """Address of memory that this host's ranks share; `rueda._heap` gives it back.

        MemoryError says how much is in use.
        """
        address, error = ctypes.c_void_p(), _ffi.Error()
        context = self.require_context()
        allocate = _lib.rueda_alloc if zeroed else _lib.rueda_alloc_uncleared
        code = allocate(context, nbytes, ctypes.byref(address), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        return address.value

    def change_process_sets(self, function, *arguments):
        """Adds or removes a process set with all other ranks; gives the new one's id."""
        pointer, error = ctypes.c_void_p(), _ffi.Error()
        context = self.require_context()
        code = function(context, *arguments, context.site(), ctypes.byref(pointer), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        request = Request(pointer.value)
        request.wait()
        return request.result()

    def process_sets(self):
        """{id: ranks} of all process sets; ValueError when not initialised."""
        size, context = self.place.size, self._initialized_context()
        count = _lib.rueda_process_sets(context, None, 0)
        ids = (ctypes.c_int32 * max(0, count))()
        count = min(count, _lib.rueda_process_sets(context, ids, len(ids)))
        found = {}
        for set_id in ids[: max(0, count)]:
            ranks = (ctypes.c_int32 * size)()
            members = _lib.rueda_process_set_ranks(context, set_id, ranks, size)
            if members >= 0:
                found[set_id] = ranks[:members]
        if not found:  # there is a global one, but for who has left
            raise ValueError(not_initialized())
        return found

    def _require_same(self, context):
        """HorovodInternalError if another thread has left the context's job."""
        if self.require_context() is not context:
            raise HorovodInternalError(f"{own_name()} has been shut down while it was asked.")
