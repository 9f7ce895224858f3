"""Runs the programs of one rank of a job, or of all ranks of one process: the library's executor, which calls back for memory and work."""

import ctypes
import itertools

import torch

from rueda import _ffi
from rueda._runtime import runtime

_lib = _ffi.library
_runs = {}  # number -> _Run, of those under way
_numbers = itertools.count(1)
_left_over = []  # memory of failed calls, whose messages may still use it


class _Run:
    def __init__(self, ranks):
        self.ranks, self.error = ranks, None
        self.reason = ctypes.create_string_buffer(512)  # for the other ranks' errors

    def fail(self, error):
        self.error = error
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").replace(b"\0", b"")
        self.reason.value = text[: len(self.reason) - 1].decode("utf-8", "ignore").encode()


def _kept(function, otherwise):
    """What is raised goes on behind the library's frames."""

    def called(user, place, *arguments):
        run = _runs[user]
        try:
            return function(run.ranks[place], *arguments)
        except BaseException as error:
            run.fail(error)
            return otherwise

    return called


def _perform(rank, number):
    rank.perform(number)
    return 0


_TYPES = dict(_ffi.AttentionDevice._fields_)
_CALLBACKS = (
    _TYPES["take"](_kept(lambda rank, slot, size: rank.take(slot, size), None)),
    _TYPES["give"](_kept(lambda rank, slot: rank.give(slot), None)),
    _TYPES["perform"](_kept(_perform, 1)),
)


def place_of(tensor):
    """(number of its GPU, the current stream there); -1 for the host's memory."""
    if tensor.device.type != "cuda":
        return -1, None
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream or None


def _called_back(ranks, tensor, function):
    """function(device, under_way, error) with what calls these ranks back, in the current stream of the device of ``tensor``."""
    device, stream = place_of(tensor)
    number = next(_numbers)
    call = _runs[number] = _Run(ranks)
    reason = ctypes.cast(call.reason, ctypes.c_char_p)
    settings = _ffi.AttentionDevice(
        ctypes.sizeof(_ffi.AttentionDevice), device, stream, number, *_CALLBACKS, reason, len(call.reason)
    )
    under_way, error = ctypes.c_int32(), _ffi.Error()
    try:
        with torch.cuda.device_of(tensor):
            code = function(ctypes.byref(settings), ctypes.byref(under_way), ctypes.byref(error))
    finally:
        del _runs[number]
    if under_way.value:
        _left_over.extend(memory for rank in ranks for memory in rank.held())
    if call.error is not None:
        raise call.error
    if code != _ffi.OK:
        raise _ffi.exception(code, error)


def run(ranks, tensor):
    """Runs a list of `Rank` calls: one of a job's process set, or those of all ranks of this process. Everything is given to the
    current stream of the device of ``tensor``. Returns the bytes that each has sent, where they are of one process."""
    plan = ranks[0].plan
    context = None if plan.local else runtime.require_context()
    plans = (ctypes.c_void_p * len(ranks))(*(rank.plan.pointer for rank in ranks))
    sent = (ctypes.c_int64 * len(ranks))()
    _called_back(
        ranks, tensor,
        lambda device, *told: _lib.rueda_attention_run(
            context, plans, len(ranks), plan.process_set_id, ranks[0].program.backward, device, sent, *told
        ),
    )  # fmt: skip
    return list(sent)


def run_decode(call, process_set_id, is_local):
    """Runs a `Decode` of this rank; everything is given to the current stream of its device."""
    context = None if is_local else runtime.require_context()
    spec = ctypes.byref(call.spec)
    _called_back(
        [call], call.q, lambda *told: _lib.rueda_attention_decode_run(context, spec, process_set_id, *told)
    )
