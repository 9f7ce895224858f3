"""An ordered group of the library: all that this package asks of the C ABI beside the life cycle.

A call is described by a `Description`, which says everything but where its memory lies. What comes a
second time becomes a persistent request; one that is idle waits here for its next start.
"""

import collections
import ctypes

from rueda import _ffi
from rueda._requests import SLICE, Request
from rueda._runtime import runtime

_lib = _ffi.library
_run, _start = _lib.rueda_request_run, _lib.rueda_request_start
_OK = _ffi.OK

MOST_FORMS = 1024  # descriptions that a group remembers; those used first are forgotten first

Description = collections.namedtuple(
    "Description",
    "kind dtype count reduce_op root splits output_splits prescale device rows",
    defaults=(_ffi.UINT8, 0, _ffi.SUM, 0, (), (), 1.0, -1, -1),
)
Description.__doc__ = """One rueda_op: ``count`` elements, or a tuple, its shape; ``root`` is a rank of the job; splits are elements for
each member, ``output_splits`` those that each gets or that come from each; ``rows``: elements of the output."""

_nothing = ctypes.create_string_buffer(64)  # where tensors without elements are said to lie
NOTHING = ctypes.addressof(_nothing)


def remember(known, key, value):
    """Puts it into a dictionary of forms; what was first is forgotten first when it is full."""
    if len(known) >= MOST_FORMS:
        try:
            known.pop(next(iter(known)))
        except (StopIteration, RuntimeError, KeyError):  # another thread does the same
            pass
    known[key] = value


class Group:
    """One member's side of an ordered group; ``ranks`` are ranks of the job, in the group's order.

    Opening waits for nobody. The n-th call of each member belongs together.
    """

    def __init__(self, key, ranks):
        self._context = context = runtime.require_context()
        self._idle = {}  # Description: idle persistent requests; None for what came once
        number, error = ctypes.c_int32(), _ffi.Error()
        array = (ctypes.c_int32 * len(ranks))(*ranks)
        code = _lib.rueda_open_group(
            context,
            key.encode(),
            array,
            len(ranks),
            context.site(),
            ctypes.byref(number),
            ctypes.byref(error),
        )
        if code != _OK:
            raise _ffi.exception(code, error)
        self.number = number.value

    def run(self, description, source, target, keep, seconds):
        """One call, waited for. ``keep`` owns the memory at the addresses."""
        idle = self._idle.get(description)
        if idle:
            request = idle.pop()
            try:
                code = _run(request.pointer, source, target, None, SLICE, None)
                if code == _OK:
                    idle.append(request)
                    return
                if not request.test():
                    request.wait(seconds)
                    idle.append(request)
                    return
                request.check()  # raises how it ended; else it has not begun
            except BaseException:
                runtime.hold((request,), keep)
                raise
        request = self.start(description, source, target, keep)
        try:
            request.wait(seconds)
        except BaseException:
            runtime.hold((request,), keep)
            raise
        self.put_back(description, request)

    def start(self, description, source, target, keep, stream=None):
        """The `Request` of one call, which has been started. `put_back` it when it has ended well."""
        if description.device >= 0:  # whose end on the GPU others may still ask for
            return self._start_new((description,), (source,), (target,), stream)[0]
        idle = self._idle.get(description, False)
        if idle is False or target is None:  # comes for the first time; a persistent one has memory
            remember(self._idle, description, None)
            return self._start_new((description,), (source,), (target,), stream)[0]
        request = idle.pop() if idle else self._make(description)
        if request is None:
            return self._start_new((description,), (source,), (target,), stream)[0]
        error = _ffi.Error()
        try:
            code = _start(request.pointer, source, target, stream, ctypes.byref(error))
        except BaseException:
            runtime.hold((request,), keep)
            raise
        if code != _OK:
            raise _ffi.exception(code, error)
        return request

    def put_back(self, description, request):
        """For the next time. Its last start has ended well, and nobody waits for it."""
        if request._key is not None:
            idle = self._idle.get(description)
            if idle is None:
                idle = self._idle[description] = []
            idle.append(request)

    def start_as_one(self, descriptions, sources, targets, stream=None):
        """`start` of several calls of one kind, which are one call of the group: their requests."""
        return self._start_new(descriptions, sources, targets, stream)

    def start_message(self, kind, dtype, count, peer, tag, address, device=-1, stream=None):
        """A send or a receive; ``peer`` is a rank of the job, -1 any. Matched by peer and tag."""
        struct = _ffi.Op(
            ctypes.sizeof(_ffi.Op), kind, dtype, _ffi.SUM, 0, peer, tag, None, address, address,
            (ctypes.c_int64 * 1)(count), 1, 0, None, 1.0, 1.0, self.number, self._context.site(),
            device, 0, stream, -1, None, 0, 0,
        )  # fmt: skip
        return self._begin((_ffi.Op * 1)(struct))[0]

    def close(self):
        """This rank is done with it; calls under way end in the background."""
        self._idle.clear()
        _lib.rueda_close_group(self._context, self.number, None)

    def abort(self, reason):
        """Ends everything in it, here and on all members, with this reason."""
        self._idle.clear()
        _lib.rueda_abort_group(self._context, self.number, reason.encode()[:1000], None)

    def _make(self, description):
        """A persistent request; None: what is wrong will be said by a start."""
        pointer, struct = ctypes.c_void_p(), self._struct(description, None, None, None)
        if (
            _lib.rueda_request_create(self._context, struct, 1, 0, ctypes.byref(pointer), None)
            != _OK
        ):
            return None
        return Request(pointer.value, None, description)

    def _start_new(self, descriptions, sources, targets, stream):
        return self._begin(
            (_ffi.Op * len(descriptions))(
                *(self._struct(*each, stream) for each in zip(descriptions, sources, targets))
            )
        )

    def _begin(self, structs):
        count, error = len(structs), _ffi.Error()
        pointers, requests = (ctypes.c_void_p * count)(), [Request(None) for _ in structs]
        code = _lib.rueda_start(
            self._context, structs, count, 1 if count > 1 else 0, pointers, ctypes.byref(error)
        )
        for request, pointer in zip(requests, pointers):
            request.pointer = pointer
        if code != _OK:
            raise _ffi.exception(code, error)
        return requests

    def _struct(self, description, source, target, stream):
        kind, dtype, count, reduce_op, root, splits, output_splits, prescale, device, rows = (
            description
        )
        shape = () if kind == _ffi.BARRIER else count if isinstance(count, tuple) else (count,)
        return _ffi.Op(
            ctypes.sizeof(_ffi.Op), kind, dtype, reduce_op, root, 0, 0, None, source, target,
            (ctypes.c_int64 * len(shape))(*shape) if shape else None, len(shape),
            len(splits), (ctypes.c_int64 * len(splits))(*splits) if splits else None,
            prescale, 1.0, self.number, self._context.site(), device, 0, stream, rows,
            (ctypes.c_int64 * len(output_splits))(*output_splits) if output_splits else None,
            len(output_splits), 0,
        )  # fmt: skip
