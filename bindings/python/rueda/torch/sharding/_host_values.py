"""One copy of the values of parameters for all ranks of a host.

It lies in the shared memory of the first rank; the others see it through `rueda_peer_memory`. Before the values
there is the number of each rank's process, which that rank clears when it needs them no more: the owner gives the memory
back when all have, or have died.
"""

import ctypes
import os

import torch

from rueda import _ffi
from rueda._heap import Block
from rueda._memory import memory_view
from rueda._numpy import np
from rueda._runtime import runtime
from rueda.torch.memory import over

_HEAD = 4096  # bytes before the values: a page, so that these begin one
_MOST_RANKS = _HEAD // 4

_left = []  # of this process, (Block, ranks): this rank needs them no more, and maybe others do


class _Lease:
    """This rank's use of the memory; ends with the last tensor in it."""

    def __init__(self, address, rank, ranks, block):
        self.address, self._rank, self._ranks, self._block = address, rank, ranks, block
        self._process = os.getpid()

    def __del__(self):
        if os.getpid() != self._process:
            return  # a forked child, where the memory is not there
        _user(self.address, self._rank).value = 0
        if self._block is not None:
            _left.append((self._block, self._ranks))
            _give_back()


def _user(address, rank):
    """The word of that rank's process."""
    return ctypes.c_int32.from_address(address + 4 * rank)


def _give_back():
    """Frees what no rank needs any more. Calls itself, where that ends something else."""
    for pair in _left[:]:
        block, ranks = pair
        if not any(_is_used(_user(block.address, rank).value) for rank in range(ranks)) and pair in _left:
            _left.remove(pair)


def _is_used(pid):
    return pid != 0 and not has_died(pid)


def has_died(pid):
    """Of a process of this host; also if nobody has waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def room_of_all(wire, count, dtype):
    """Flat memory of ``count`` elements that is the same on all ranks of ``wire``; all of them call this.

    MemoryError on all of them where the first has none.
    """
    _give_back()
    if wire.size > _MOST_RANKS:
        raise ValueError(f"share='host' is for at most {_MOST_RANKS} ranks of a host")
    nbytes, block, place = _HEAD + count * torch.empty(0, dtype=dtype).element_size(), None, -1
    if wire.rank == 0:
        try:
            block = Block(nbytes)
            place = place_of(block.address)
        except MemoryError:
            pass
    place = wire.from_first(place)
    if place < 0:
        raise MemoryError(f"the first rank has no shared memory for {nbytes} bytes of parameters (RUEDA_HEAP_BYTES)")
    address = block.address if block is not None else address_of(wire.ranks[0], place, nbytes)
    if wire.combine(float(address is not None), _ffi.MIN) == 0:
        raise MemoryError("the first rank's shared memory cannot be seen by all ranks of this host")
    _user(address, wire.rank).value = os.getpid()
    lease = _Lease(address, wire.rank, wire.size, block)
    wire.barrier()  # all use it
    view = memory_view(address + _HEAD, nbytes - _HEAD, lease)
    return over(np.frombuffer(view, np.uint8), (count,), (1,), dtype)


def place_of(address):
    """Of this rank's shared memory, for others' `address_of`. ValueError: it is other memory."""
    place, error = ctypes.c_uint64(), _ffi.Error()
    code = _ffi.library.rueda_memory_place(address, ctypes.byref(place), ctypes.byref(error))
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return place.value


def address_of(rank, place, nbytes):
    """A rank's memory as it lies here. None: no memory is shared with that rank."""
    address, error = ctypes.c_void_p(), _ffi.Error()
    code = _ffi.library.rueda_peer_memory(
        runtime.require_context(), rank, place, nbytes, ctypes.byref(address), ctypes.byref(error)
    )
    if code == _ffi.FAILED_PRECONDITION:
        return None
    if code != _ffi.OK:
        raise _ffi.exception(code, error)
    return address.value
