"""Every collective once, for any kind of tensor: what the surfaces of NumPy and PyTorch have in common.

A surface hands in an adapter for its tensors, an object with

==============================  ================================================================
``take(tensor)``                what the caller gave, as a tensor
``describe(tensor)``            its rueda_dtype; ValueError for a type, device or layout that rueda cannot take
``shape(tensor)``               extents as a tuple of ints
``address(tensor)``             where the first element lies
``nbytes(tensor)``              how many bytes lie there
``packed(tensor)``              whether the elements lie in C order without gaps
``pack(tensor)``                the tensor itself if packed, else a packed copy
``empty(shape, like)``          a new packed tensor of the type of ``like``
``describe_in_place(tensor)``   the same, of what is to be written too
``check_out(out, tensor)``      ValueError if nothing can be written to ``out``, RuntimeError if a gradient
                                would be lost there
``awaited(tensor, like)``         a new packed tensor of the form of ``like`` (None: of the tensor), where the
                                tensor is; for what comes in exchange for it
``adopt(address, shape, like, owner)``  a tensor over memory that lives as long as ``owner``
``read_splits(splits)``         the caller's splits as a list of ints; ValueError for others
``splits(counts)``              received splits as this surface returns them
``place(tensor)``               where it lies: (-1, None) on the host, else the GPU and its current stream
``stream(device)``              the current stream of a GPU
==============================  ================================================================

and has the methods of `Collectives`, with the arguments of the surfaces' functions in their order
(bindings/schema/collectives.py).
"""

import ctypes
import warnings

from rueda import _ffi
from rueda._operation import Operation
from rueda._replay import replayed
from rueda._runtime import runtime
from rueda.common.exceptions import WrongCallError
from rueda.common.process_sets import id_for_operation

_NOTHING = ctypes.c_char()  # an address for memory without bytes
_REDUCE_OPS = (_ffi.AVERAGE, _ffi.SUM, _ffi.ADASUM, _ffi.MIN, _ffi.MAX, _ffi.PRODUCT)


def reduce_op(op, average):
    """The reduction that a pair of Horovod's ``op`` and deprecated ``average`` arguments means."""
    if op is not None and average is not None:
        raise ValueError("give either op or average, not both: op replaces average")
    if average is not None:
        warnings.warn("average is deprecated, use op=Average or op=Sum", DeprecationWarning, 4)
        return _ffi.AVERAGE if average else _ffi.SUM
    op = _ffi.AVERAGE if op is None else op
    if op not in _REDUCE_OPS:
        raise ValueError(f"op={op!r}: expected Average, Sum, Adasum, Min, Max or Product")
    return op


class Collectives:
    """All operations for the tensors of one adapter.

    ``out``: where the result goes. None: a new tensor; the very tensor that was given: in place;
    another: the caller's memory, which must fit.

    Parameters
    ----------
    adapter : class
    wait : bool
        Whether the methods wait and return the result; else they return a handle for `synchronize`.
    """

    def __init__(self, adapter, wait=False):
        self._adapter = adapter
        self._begin = runtime.complete if wait else runtime.submit
        self._begin_again = runtime.complete_again if wait else runtime.submit_again
        self.waits = wait

    def _begin_alike(self, key, kind, name, operation, keep, finish):
        """Of one that is a new one each time it comes again. The last of the key is the process set's."""
        if self.waits and operation.device < 0 and (name is None or type(name) is str):
            key = (operation.kind, name, *key)
            return runtime.complete_alike(key, kind, name, operation, keep, finish)
        return self._begin(kind, name, [operation], keep, finish)

    # Into memory whose size is known beforehand.

    @replayed
    def allreduce(
        self, tensor, average, name, op, prescale_factor, postscale_factor, process_set, out=None
    ):
        fields = _reduction(reduce_op(op, average), prescale_factor, postscale_factor)
        return self._submit_into("allreduce", _ffi.ALLREDUCE, tensor, out, name, process_set, fields)

    @replayed
    def grouped_allreduce(
        self,
        tensors,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=False,
    ):
        fields = _reduction(reduce_op(op, average), prescale_factor, postscale_factor)
        return self._submit_group_into(
            "grouped_allreduce", _ffi.ALLREDUCE, tensors, in_place, name, process_set, fields
        )

    @replayed
    def broadcast(self, tensor, root_rank, name, process_set, out=None):
        size = runtime.require_running().size
        if not 0 <= root_rank < size:
            raise ValueError(
                f"broadcast: invalid root rank {root_rank}, this job has ranks 0 to {size - 1}"
            )
        if id_for_operation(process_set) != 0 and root_rank not in process_set.ranks:
            raise ValueError(
                f"broadcast: invalid root rank {root_rank}, {process_set} does not have it; give "
                "its rank in the job"
            )
        fields = {"root": root_rank}
        return self._submit_into("broadcast", _ffi.BROADCAST, tensor, out, name, process_set, fields)

    @replayed
    def reducescatter(
        self, tensor, name, op, process_set, prescale_factor, postscale_factor, out=None
    ):
        kind = "reducescatter"
        fields = _reduction(_sum_op(kind, op), prescale_factor, postscale_factor)
        return self._submit_into(kind, _ffi.REDUCESCATTER, tensor, out, name, process_set, fields)

    @replayed
    def grouped_reducescatter(
        self, tensors, name, op, process_set, prescale_factor, postscale_factor
    ):
        kind = "grouped_reducescatter"
        fields = _reduction(_sum_op(kind, op), prescale_factor, postscale_factor)
        return self._submit_group_into(
            kind, _ffi.REDUCESCATTER, tensors, False, name, process_set, fields
        )

    def _submit_into(self, kind, code, tensor, out, name, process_set, fields):
        fields["process_set"] = id_for_operation(process_set)
        operation, packed, output = self._operation_into(
            kind, code, tensor, out, process_set, fields
        )

        def finish(requests):
            if operation.device >= 0:
                self.go_on_behind(requests, operation.device, operation.stream)
            return output

        keep = packed, output
        fields["process_set"] = process_set.key
        key = (packed.dtype, packed.shape, *fields.values())
        if type(name) is not str:
            return self._begin_alike(key, kind, name, operation, keep, finish)
        key = (code if operation.device < 0 else (code, operation.device), name, *key)
        return self._begin_again(key, kind, name, operation, keep, finish)

    def _submit_group_into(self, kind, code, tensors, in_place, name, process_set, fields):
        fields["process_set"] = id_for_operation(process_set)
        operations, *keep = zip(
            *(
                self._operation_into(
                    kind, code, tensor, tensor if in_place else None, process_set, fields
                )
                for tensor in _sequence(tensors)
            )
        )
        return self._submit(kind, name, operations, keep, lambda requests: keep[1], True)

    def _operation_into(self, kind, code, tensor, out, process_set, fields):
        """(operation, tensor that is read, tensor that is written)"""
        adapter, in_place = self._adapter, out is tensor
        if in_place:
            dtype, shape = adapter.describe_in_place(tensor), adapter.shape(tensor)
            if not adapter.packed(tensor):
                raise ValueError(
                    f"{kind} in place: tensor is required to be contiguous; "
                    "use the out-of-place form or make it contiguous"
                )
            device, stream = adapter.place(tensor)
            address = adapter.address(tensor)
            memory = dtype, address, address, shape
            operation = Operation(code, *memory, device=device, stream=stream, **fields)
            return operation, tensor, tensor
        taken = adapter.take(tensor)
        dtype, shape = adapter.describe(taken), adapter.shape(taken)
        result = shape
        if code == _ffi.REDUCESCATTER:
            if not shape:
                raise ValueError(f"{kind} does not support scalar inputs: it splits dimension 0")
            rank, size = process_set.rank(), process_set.size()
            result = (_ffi.library.rueda_split_rows(shape[0], rank, size), *shape[1:])
        if out is not None:
            adapter.check_out(out, taken)
        packed = adapter.pack(taken)
        output = adapter.empty(result, taken) if out is None else self._fit(kind, packed, result, out)
        return self._operation(code, dtype, packed, output, shape, fields), packed, output

    def _operation(self, code, dtype, tensor, output, shape, fields):
        """On the memory of packed tensors; ``output`` None: the library's own."""
        adapter = self._adapter
        device, stream = adapter.place(tensor)
        memory = adapter.address(tensor), None if output is None else adapter.address(output)
        return Operation(code, dtype, *memory, shape, device=device, stream=stream, **fields)

    def _fit(self, kind, tensor, shape, out, may_be_tensor=True):
        """The caller's memory for a result; ValueError says what is expected of it."""
        adapter = self._adapter
        fits = out.dtype == tensor.dtype and adapter.shape(out) == shape and adapter.packed(out)
        if not fits or adapter.place(out)[0] != adapter.place(tensor)[0]:
            raise ValueError(
                f"{kind}: out must be like the result, contiguous {_form(tensor, shape)}; it is "
                f"{'' if adapter.packed(out) else 'not contiguous, '}{_form(out, adapter.shape(out))}"
            )
        distance = adapter.address(out) - adapter.address(tensor)
        if -adapter.nbytes(out) < distance < adapter.nbytes(tensor):
            if not may_be_tensor or distance != 0 or adapter.shape(tensor) != shape:
                raise ValueError(f"{kind}: out overlaps the tensor that is sent")
        return out

    # Into memory of the library's own, because only it knows how many rows come.

    @replayed
    def allgather(self, tensor, name, process_set, out=None):
        return self._gather("allgather", [tensor], name, process_set, False, out)

    @replayed
    def grouped_allgather(self, tensors, name, process_set):
        return self._gather("grouped_allgather", tensors, name, process_set, True)

    @replayed
    def allgather_with_places(self, tensors, name, process_set, grouped):
        """Also where this rank's rows begin in each result: ``(results, first rows)``."""
        kind = "grouped_allgather" if grouped else "allgather"
        return self._gather(kind, tensors, name, process_set, grouped, places=True)

    def _gather(self, kind, tensors, name, process_set, grouped, out=None, places=False):
        runtime.require_running()
        fields = {"process_set": id_for_operation(process_set)}
        operations, inputs = [], []
        for tensor in _sequence(tensors):
            taken, dtype, shape = self._with_rows(kind, tensor)
            packed = self._adapter.pack(taken)
            operation = self._operation(_ffi.ALLGATHER, dtype, packed, None, shape, fields)
            operations.append(self._to_receive(kind, operation, taken, packed, out))
            inputs.append(packed)

        def results(requests):
            found = tuple(self._received(*each, out) for each in zip(requests, inputs))
            if not places:
                return found if grouped else found[0]
            rank, size = process_set.rank(), process_set.size()
            return found, [sum(request.rows(size)[:rank]) for request in requests]

        if grouped or places:
            return self._submit(kind, name, operations, inputs, results, grouped)
        return self._submit_alike(kind, name, operations[0], [*inputs, out], results, process_set)

    @replayed
    def alltoall(self, tensor, splits, name, process_set, out=None):
        """The result is always (rows, received splits)."""
        splits = self._adapter.read_splits(splits)
        runtime.require_running()
        fields = {"process_set": id_for_operation(process_set)}
        size = process_set.size()
        taken, dtype, shape = self._with_rows("alltoall", tensor)
        equal = splits is None
        fields["splits"] = splits = tuple(_checked_splits(splits, shape[0], size))
        packed = self._adapter.pack(taken)
        # Rows beyond the sum of the splits go nowhere, so the library need not see them.
        shape = (sum(splits), *shape[1:])
        operation = self._operation(_ffi.ALLTOALL, dtype, packed, None, shape, fields)
        operation = self._to_receive("alltoall", operation, taken, packed, out)

        def results(requests):
            received = self._adapter.splits(requests[0].rows(size))
            return self._received(requests[0], packed, out), received

        if out is None and not equal:
            return self._submit("alltoall", name, [operation], packed, results, False)
        return self._submit_alike("alltoall", name, operation, [packed, out], results, process_set)

    def _with_rows(self, kind, tensor):
        """(tensor, rueda_dtype, shape) of what must have a first dimension."""
        adapter = self._adapter
        taken = adapter.take(tensor)
        dtype, shape = adapter.describe(taken), adapter.shape(taken)
        if not shape:
            raise WrongCallError(
                f"{kind} of a rank-zero tensor: it needs a first dimension; "
                "reshape the tensor to one dimension"
            )
        return taken, dtype, shape

    def _to_receive(self, kind, operation, tensor, packed, out):
        """The operation, with the caller's memory for the rows that come, which must be as many as it has."""
        if out is None:
            return operation
        adapter = self._adapter
        adapter.check_out(out, tensor)
        rows = adapter.shape(out)[:1]
        self._fit(kind, packed, (*(rows or (1,)), *operation.shape[1:]), out, False)
        address = adapter.address(out) or ctypes.addressof(_NOTHING)  # without rows it may be nowhere
        return operation._replace(output=address, rows=rows[0])

    def _received(self, request, like, out):
        if out is not None:
            return out
        address, shape = request.output()
        return self._adapter.adopt(address, shape, like, request)

    # From one rank to another.

    @replayed
    def send(self, tensor, dst, tag):
        _check_peer("send to", dst, tag)
        taken = self._adapter.take(tensor)
        dtype, packed = self._adapter.describe(taken), self._adapter.pack(taken)
        return self._pass("send", _ffi.SEND, dtype, packed, dst, tag, None)

    @replayed
    def recv(self, tensor, src, tag):
        _check_peer("receive from", src, tag)
        dtype = self._adapter.describe_in_place(tensor)
        if not self._adapter.packed(tensor):
            raise ValueError("recv: tensor is required to be contiguous")
        return self._pass("recv", _ffi.RECV, dtype, tensor, src, tag, tensor)

    @replayed
    def sendrecv(self, tensor, dst, src, like, tag):
        """Both at once, into a new tensor of the form of ``like``, or of the tensor."""
        adapter = self._adapter
        _check_peer("send to", dst, tag)
        _check_peer("receive from", src, tag)
        taken = adapter.take(tensor)
        dtype, packed = adapter.describe(taken), adapter.pack(taken)
        result = adapter.awaited(taken, like)
        sent = self._operation(
            _ffi.SEND, dtype, packed, None, adapter.shape(packed), {"peer": dst, "tag": tag}
        )
        came = self._operation(
            _ffi.RECV, adapter.describe(result), result, None, adapter.shape(result),
            {"peer": src, "tag": tag},
        )
        came = came._replace(input=None, output=came.input)
        keep = packed, result
        name = f"{dst}.{src}.{tag}"
        return self._submit("sendrecv", name, [sent, came], keep, lambda requests: result, False)

    def _pass(self, kind, code, dtype, tensor, peer, tag, result):
        fields, shape = {"peer": peer, "tag": tag}, self._adapter.shape(tensor)
        operation = self._operation(code, dtype, tensor, None, shape, fields)
        if code == _ffi.RECV:
            operation = operation._replace(input=None, output=operation.input)
        name = f"{peer}.{tag}"  # for messages; it need not be unique
        return self._submit(kind, name, [operation], tensor, lambda requests: result, False)

    # The way of all.

    def _submit(self, kind, name, operations, keep, results, grouped):
        """Begins it; ``results(requests)`` is what it gives."""
        device, stream = operations[0].device, operations[0].stream

        def finish(requests):
            if device >= 0:
                self.go_on_behind(requests, device, stream)
            return results(requests)

        return self._begin(kind, name, operations, keep, finish, grouped)

    def _submit_alike(self, kind, name, operation, keep, results, process_set):
        """The same of one that may come again; ``keep`` begins with its tensor."""
        key = keep[0].dtype, keep[0].shape
        if operation.device >= 0:
            return self._submit(kind, name, [operation], keep, results, False)
        if operation.output is None:
            return self._begin_alike((*key, process_set.key), kind, name, operation, keep, results)
        key = (operation.kind, name, *key, operation.splits, operation.rows, process_set.key)
        if type(name) is not str:
            return self._begin(kind, name, [operation], keep, results)
        return self._begin_again(key, kind, name, operation, keep, results)

    def go_on_behind(self, requests, device, stream):
        """Of a GPU's operation: what streams are given from here on comes behind its end.

        The current stream of the thread that synchronises, which uses the result; and ``stream``, the
        one that the tensors came from, in whose order the framework gives their memory to others.
        """
        streams = {self._adapter.stream(device) or 0, stream or 0}
        for request in requests:
            for each in streams:
                request.make_wait(each)


def _reduction(op, prescale_factor, postscale_factor):
    """The fields of an operation that say what is computed."""
    runtime.require_running()
    return {"reduce_op": op, "prescale": prescale_factor, "postscale": postscale_factor}


def _sum_op(kind, op):
    if op not in (_ffi.AVERAGE, _ffi.SUM):
        raise WrongCallError(f"{kind} only supports AVERAGE and SUM, got op={op!r}")
    return op


def _form(tensor, shape):
    """``float32[3, 4]``, on a GPU with its name, for messages."""
    device = getattr(tensor, "device", "cpu")
    where = "" if str(device) == "cpu" else f" on {device}"
    return f"{str(tensor.dtype).replace('torch.', '')}{list(shape)}{where}"


def _sequence(tensors):
    tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return tensors


def _checked_splits(splits, rows, size):
    """``splits``: list of rows for each rank, or None for equal parts."""
    if splits is None:
        if rows % size != 0:
            raise ValueError(
                f"alltoall without splits: {rows} rows cannot be divided by {size} ranks"
            )
        return [rows // size] * size
    if len(splits) != size:
        raise ValueError(f"alltoall: {len(splits)} splits for {size} ranks")
    if min(splits) < 0 or sum(splits) > rows:
        raise ValueError(
            f"alltoall: splits {splits} must not be negative and may add up to at most "
            f"the {rows} rows of the tensor"
        )
    return splits


def _check_peer(action, peer, tag):
    if not 0 <= tag < 2**32:
        raise ValueError(f"cannot {action} rank {peer}: tag {tag} is not between 0 and 2**32 - 1")
    place = runtime.require_running()
    if not 0 <= peer < place.size or peer == place.rank:
        raise ValueError(f"cannot {action} rank {peer}: this is rank {place.rank} of {place.size}")
