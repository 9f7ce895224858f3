"""The collectives once, for every kind of tensor: what NumPy and PyTorch have in common.

A surface hands in an adapter for its tensors, an object with

=====================  =========================================================================
``describe(tensor)``   the rueda_dtype; ValueError for a type, device or layout rueda cannot take
``shape(tensor)``      extents as a tuple of ints
``address(tensor)``    where the first element lies
``packed(tensor)``     whether the elements lie in C order without gaps
``pack(tensor)``       the tensor itself if packed, else a packed copy
``empty(shape, like)`` a new packed tensor of the type of ``like``
``adopt(address, shape, like, owner)``  a tensor over memory that lives as long as ``owner``
``splits(counts)``     received splits as this surface returns them
``place(tensor)``      where it lies: (-1, None) on the host, else the GPU and its current stream
``stream(device)``     the current stream of a GPU
=====================  =========================================================================

Every function returns a handle for `Runtime.synchronize`; ``*_outputs`` are one tensor per input.
"""

import warnings

from rueda import _ffi
from rueda._runtime import Operation, runtime
from rueda.common.exceptions import WrongCallError
from rueda.common.process_sets import global_process_set, id_for_operation

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


def _sequence(tensors):
    tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return tensors


class Collectives:
    """All operations for the tensors of one adapter."""

    def __init__(self, adapter):
        self._adapter = adapter

    def _require_dimensions(self, kind, tensor):
        if not self._adapter.shape(tensor):
            raise WrongCallError(
                f"{kind} of a rank-zero tensor: it needs a first dimension; "
                "reshape the tensor to one dimension"
            )

    def _submit(self, kind, name, operations, keep, results, grouped):
        """Submits; ``results(works)`` gives a list, of which an ungrouped operation has one."""
        def finish(works):
            self.go_on_behind(works, operations[0])
            return tuple(results(works)) if grouped else results(works)[0]

        return runtime.submit(kind, name, operations, keep, finish, grouped)

    def go_on_behind(self, works, operation):
        """Of a GPU's operation: what streams are given from here on comes behind its end.

        The current stream of the thread that synchronises, which uses the result; and the one that the
        tensors came from, in whose order the framework gives their memory to others.
        """
        if operation.device < 0:
            return
        streams = {self._adapter.stream(operation.device) or 0, operation.stream or 0}
        for work in works:
            for stream in streams:
                work.make_wait(stream)

    def _submit_again(self, key, kind, name, operation, keep, output):
        if operation.device >= 0:
            key = ((key[0], operation.device), *key[1:])

        def finish(works):
            self.go_on_behind(works, operation)
            return output

        return runtime.submit_again(key, kind, name, operation, keep, finish)

    def _on_device(self, operation, tensor):
        """The operation, with the GPU and the stream that its tensor is on."""
        device, stream = self._adapter.place(tensor)
        return operation if device < 0 else operation._replace(device=device, stream=stream)

    def _same_shape(self, code, kind, tensors, in_place, name, grouped, process_set, **fields):
        """Operations whose output has the input's shape."""
        fields["process_set"] = id_for_operation(process_set)
        adapter = self._adapter
        inputs, outputs, operations = [], [], []
        for tensor in tensors:
            dtype = adapter.describe(tensor)
            if in_place and not adapter.packed(tensor):
                raise ValueError(
                    f"{kind} in place: tensor is required to be contiguous; "
                    "use the out-of-place form or make it contiguous"
                )
            packed = tensor if in_place else adapter.pack(tensor)
            shape = adapter.shape(tensor)
            output = tensor if in_place else adapter.empty(shape, tensor)
            inputs.append(packed)
            outputs.append(output)
            operations.append(
                Operation(
                    code, dtype, adapter.address(packed), adapter.address(output), shape, **fields
                )
            )
            operations[-1] = self._on_device(operations[-1], packed)
        keep = (inputs, outputs)
        if type(name) is str and not grouped:
            fields["process_set"] = process_set.key
            key = (code, name, tensor.dtype, shape, *fields.values())
            return self._submit_again(key, kind, name, operations[0], keep, outputs[0])
        return self._submit(kind, name, operations, keep, lambda works: outputs, grouped)

    def allreduce(
        self, tensors, in_place, name, average, op, prescale, postscale, process_set, grouped
    ):
        op = reduce_op(op, average)
        runtime.require_running()
        tensors = _sequence(tensors)
        return self._same_shape(
            _ffi.ALLREDUCE,
            "grouped_allreduce" if grouped else "allreduce",
            tensors,
            in_place,
            name,
            grouped,
            process_set,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
        )

    def broadcast(self, tensor, in_place, root_rank, name, process_set):
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
        return self._same_shape(
            _ffi.BROADCAST,
            "broadcast",
            [tensor],
            in_place,
            name,
            False,
            process_set,
            root=root_rank,
        )

    def reducescatter(self, tensors, name, op, prescale, postscale, process_set, grouped):
        runtime.require_running()
        set_id = id_for_operation(process_set)
        rank, size = process_set.rank(), process_set.size()
        kind = "grouped_reducescatter" if grouped else "reducescatter"
        if op not in (_ffi.AVERAGE, _ffi.SUM):
            raise WrongCallError(f"{kind} only supports AVERAGE and SUM, got op={op!r}")
        adapter = self._adapter
        inputs, outputs, operations = [], [], []
        for tensor in _sequence(tensors):
            dtype, shape = adapter.describe(tensor), adapter.shape(tensor)
            if not shape:
                raise ValueError(f"{kind} does not support scalar inputs: it splits dimension 0")
            rows = _ffi.library.rueda_split_rows(shape[0], rank, size)
            packed, output = adapter.pack(tensor), adapter.empty((rows,) + shape[1:], tensor)
            inputs.append(packed)
            outputs.append(output)
            operations.append(
                Operation(
                    _ffi.REDUCESCATTER,
                    dtype,
                    adapter.address(packed),
                    adapter.address(output),
                    shape,
                    reduce_op=op,
                    prescale=prescale,
                    postscale=postscale,
                    process_set=set_id,
                )
            )
            operations[-1] = self._on_device(operations[-1], packed)
        keep = (inputs, outputs)
        if type(name) is str and not grouped:
            scales = prescale, postscale
            key = (_ffi.REDUCESCATTER, name, tensor.dtype, shape, op, *scales, process_set.key)
            return self._submit_again(key, kind, name, operations[0], keep, outputs[0])
        return self._submit(kind, name, operations, keep, lambda works: outputs, grouped)

    def _adopt(self, work, like):
        address, shape = work.output()
        return self._adapter.adopt(address, shape, like, work)

    def allgather(self, tensors, name, process_set, grouped):
        runtime.require_running()
        set_id = id_for_operation(process_set)
        adapter = self._adapter
        kind = "grouped_allgather" if grouped else "allgather"
        inputs, operations = [], []
        for tensor in _sequence(tensors):
            dtype = adapter.describe(tensor)
            self._require_dimensions(kind, tensor)
            packed = adapter.pack(tensor)
            inputs.append(packed)
            operations.append(
                Operation(
                    _ffi.ALLGATHER,
                    dtype,
                    adapter.address(packed),
                    None,
                    adapter.shape(packed),
                    process_set=set_id,
                )
            )
            operations[-1] = self._on_device(operations[-1], packed)

        def results(works):
            return [self._adopt(work, tensor) for work, tensor in zip(works, inputs)]

        return self._submit(kind, name, operations, inputs, results, grouped)

    def alltoall(self, tensor, splits, name, process_set):
        """``splits``: list of rows for each rank, or None for equal parts."""
        runtime.require_running()
        set_id = id_for_operation(process_set)
        size = process_set.size()
        adapter = self._adapter
        dtype = adapter.describe(tensor)
        self._require_dimensions("alltoall", tensor)
        shape = adapter.shape(tensor)
        if splits is None:
            if shape[0] % size != 0:
                raise ValueError(
                    f"alltoall without splits: {shape[0]} rows cannot be divided by {size} ranks"
                )
            splits = [shape[0] // size] * size
        elif len(splits) != size:
            raise ValueError(f"alltoall: {len(splits)} splits for {size} ranks")
        elif min(splits) < 0 or sum(splits) > shape[0]:
            raise ValueError(
                f"alltoall: splits {splits} must not be negative and may add up to at most "
                f"the {shape[0]} rows of the tensor"
            )
        packed = adapter.pack(tensor)
        # Rows beyond the sum of the splits go nowhere, so the library need not see them.
        operation = Operation(
            _ffi.ALLTOALL,
            dtype,
            adapter.address(packed),
            None,
            (sum(splits),) + shape[1:],
            splits=tuple(splits),
            process_set=set_id,
        )
        operation = self._on_device(operation, packed)

        def results(works):
            received = adapter.splits(works[0].received_splits(size))
            return [(self._adopt(works[0], packed), received)]

        return self._submit("alltoall", name, [operation], packed, results, False)

    def send(self, tensor, dst, tag):
        adapter = self._adapter
        _check_peer("send to", dst, tag)
        dtype, packed = adapter.describe(tensor), adapter.pack(tensor)
        operation = Operation(
            _ffi.SEND,
            dtype,
            adapter.address(packed),
            None,
            adapter.shape(packed),
            peer=dst,
            tag=tag,
        )
        operation = self._on_device(operation, packed)
        name = f"{dst}.{tag}"  # for messages; it need not be unique
        return self._submit("send", name, [operation], packed, lambda works: [None], False)

    def recv(self, tensor, src, tag):
        adapter = self._adapter
        _check_peer("receive from", src, tag)
        dtype = adapter.describe(tensor)
        if not adapter.packed(tensor):
            raise ValueError("recv: tensor is required to be contiguous")
        operation = Operation(
            _ffi.RECV,
            dtype,
            None,
            adapter.address(tensor),
            adapter.shape(tensor),
            peer=src,
            tag=tag,
        )
        operation = self._on_device(operation, tensor)
        name = f"{src}.{tag}"
        return self._submit("recv", name, [operation], tensor, lambda works: [tensor], False)


def _check_peer(action, peer, tag):
    if not 0 <= tag < 2**32:
        raise ValueError(f"cannot {action} rank {peer}: tag {tag} is not between 0 and 2**32 - 1")
    place = runtime.require_running()
    if not 0 <= peer < place.size or peer == place.rank:
        raise ValueError(f"cannot {action} rank {peer}: this is rank {place.rank} of {place.size}")


def barrier(process_set):
    """Returns once every rank of the set has called it."""
    runtime.require_running()
    operation = Operation(_ffi.BARRIER, process_set=id_for_operation(process_set))
    handle = runtime.submit("barrier", None, [operation], None, lambda works: None)
    runtime.synchronize(handle)


def join(device=-1, process_set=global_process_set):
    """Says that this rank has no more data; returns when every rank of the set has said so.

    Until then it takes part in the others' operations with what changes nothing: zeros in sums and
    averages (which are still divided by the number of ranks), the neutral element of Min, Max and
    Product, no rows where rows are gathered. Ranks that make fewer steps thus end cleanly. A
    broadcast from a rank that has joined is an error on the others, and so is a prescaled Product,
    or Min or Max of integers.

    Parameters
    ----------
    device : int
        Horovod's; where its zeros would lie. Tensors are in host memory here.
    process_set : ProcessSet
        The ranks that join; Horovod has the global set only.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.
    """
    runtime.require_running()
    operation = Operation(_ffi.JOIN, process_set=id_for_operation(process_set))
    handle = runtime.submit("join", None, [operation], None, lambda works: works[0].result())
    return runtime.synchronize(handle)
