"""Operations that only move: broadcast, the gathers and scatters, all-to-all, barrier."""

from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from rueda import _ffi
from rueda._ordered_groups import NOTHING, Description, remember
from rueda.torch.distributed import _gpus, _monitored
from rueda.torch.distributed._options import only, options, root_of
from rueda.torch.distributed._tensors import (
    address,
    adjacent,
    back,
    check_devices,
    copied,
    form,
    joined,
    packed,
    room,
    scattered,
)

_equal = {}  # (dtypes, shapes, ranks): description of an exchange of equal parts of host memory


class Moving:
    """A part of `ProcessGroup`."""

    def broadcast(self, tensors, opts=None, root=None, timeout=None):
        opts = options(BroadcastOptions, opts, None, root, timeout)
        tensor = only(tensors, "broadcast")
        root = root_of(self, opts, "broadcast")
        dtype, parts = form(tensor)
        is_root = opts.rootRank == self._rank
        target = (packed if is_root else room)(tensor, "broadcast")
        finish = None if is_root else back(target, tensor)

        place = address(target)
        description = Description(
            _ffi.BROADCAST, dtype, target.numel() * parts, root=root, device=_gpus.device_of(tensor)
        )
        return self._call("broadcast", description, place, place, target, [tensor], finish, opts)

    def allgather(self, outputs, inputs, opts=None, timeout=None):
        opts = options(AllgatherOptions, opts, timeout=timeout)
        input = only(inputs, "allgather")
        if outputs and isinstance(outputs[0], (list, tuple)):
            outputs = only(outputs, "allgather")
        return self._gather_all("allgather", outputs, input, opts)

    def _gather_all(self, name, outputs, input, opts):
        self._check_room(name, outputs, input)
        flat, finish = self._flat_room(outputs, input)
        return self._call(
            name,
            self._gathering(input, [output.numel() for output in outputs]),
            address(source := packed(input, name)),
            address(flat),
            (source, flat),
            list(outputs),
            finish,
            opts,
        )

    def _check_room(self, name, several, one, words=("output", "input")):
        many, single = words
        if len(several) != self._size:
            raise ValueError(
                f"{name}: expected {self._size} {many} tensors, one for each rank of the group, got {len(several)}"
            )
        if several[self._rank].numel() != one.numel():
            raise ValueError(
                f"{name}: the {single} has {one.numel()} elements, but the {many} for this rank "
                f"{several[self._rank].numel()}"
            )
        check_devices(name, one, several)
        if any(tensor.dtype != one.dtype for tensor in several):
            raise ValueError(f"{name}: the {single} is {one.dtype}, and not all {many}s are")

    def _flat_room(self, outputs, like):
        """(flat memory for all outputs, what copies it to them or None)."""
        flat = adjacent(outputs)
        if flat is not None:
            return flat, None
        flat = like.new_empty(sum(output.numel() for output in outputs), requires_grad=False)
        return flat, lambda _: scattered(flat, outputs)

    def _gathering(self, input, counts, kind=_ffi.ALLGATHER, root=0):
        dtype, parts = form(input)
        counts = tuple(count * parts for count in counts)
        return Description(
            kind,
            dtype,
            input.numel() * parts,
            root=root,
            output_splits=counts,
            device=_gpus.device_of(input),
            rows=sum(counts),
        )

    def all_gather_single(self, output, input, opts=None):
        opts = options(AllgatherOptions, opts)
        name = "all_gather_single"
        self._check_whole(name, output, input)
        source, target = packed(input, name), room(output, name)
        finish = back(target, output)
        return self._call(
            name,
            self._gathering(input, (input.numel(),) * self._size),
            address(source),
            address(target),
            (source, target),
            [output],
            finish,
            opts,
        )

    _allgather_base = all_gather_single

    def _check_whole(self, name, output, input):
        check_devices(name, input, (output,))
        if output.numel() != input.numel() * self._size:
            raise ValueError(
                f"{name}: the output must have {self._size} times the input's elements, one part from each rank, but "
                f"has {output.numel()} where the input has {input.numel()}"
            )
        if output.dtype != input.dtype:
            raise ValueError(f"{name}: the input is {input.dtype}, the output {output.dtype}")

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = options(AllgatherOptions, opts)
        name = "all_gather_single_coalesced"
        for output, input in zip(outputs, inputs):
            self._check_whole(name, output, input)
        sources = [packed(input, name) for input in inputs]
        targets = [room(output, name) for output in outputs]

        def finish(_):
            for target, output in zip(targets, outputs):
                if target is not output:
                    copied(target, output)

        return self._as_one(
            name,
            [self._gathering(input, (input.numel(),) * self._size) for input in inputs],
            [address(source) for source in sources],
            [address(target) for target in targets],
            (sources, targets),
            list(outputs),
            finish,
            opts,
            inputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """``outputs[rank][i]`` becomes that rank's ``inputs[i]``."""
        opts = options(AllgatherOptions, opts)
        name = "allgather_coalesced"
        by_input = [list(of_one) for of_one in zip(*outputs)]
        if len(by_input) != len(inputs):
            raise ValueError(f"{name}: {len(inputs)} inputs, but outputs for {len(by_input)}")
        for of_one, input in zip(by_input, inputs):
            self._check_room(name, of_one, input)
        rooms = [self._flat_room(of_one, input) for of_one, input in zip(by_input, inputs)]
        sources = [packed(input, name) for input in inputs]

        def finish(_):
            for _, copy in rooms:
                if copy is not None:
                    copy(None)

        return self._as_one(
            name,
            [self._gathering(i, [o.numel() for o in of]) for i, of in zip(inputs, by_input)],
            [address(source) for source in sources],
            [address(flat) for flat, _ in rooms],
            (sources, rooms),
            list(outputs),
            finish,
            opts,
            inputs,
        )

    def gather(self, outputs, inputs, opts=None, root=None, timeout=None):
        opts = options(GatherOptions, opts, None, root, timeout)
        input = only(inputs, "gather")
        root = root_of(self, opts, "gather")
        source = packed(input, "gather")
        if opts.rootRank != self._rank:
            description = self._gathering(input, (), _ffi.GATHER, root)._replace(rows=-1)
            return self._call("gather", description, address(source), None, source, [], None, opts)
        if outputs and isinstance(outputs[0], (list, tuple)):
            outputs = only(outputs, "gather")
        self._check_room("gather", outputs, input)
        flat, finish = self._flat_room(outputs, input)
        description = self._gathering(input, [o.numel() for o in outputs], _ffi.GATHER, root)
        return self._call(
            "gather",
            description,
            address(source),
            address(flat),
            (source, flat),
            list(outputs),
            finish,
            opts,
        )

    def scatter(self, outputs, inputs, opts=None, root=None, timeout=None):
        opts = options(ScatterOptions, opts, None, root, timeout)
        output = only(outputs, "scatter")
        root = root_of(self, opts, "scatter")
        target = room(output, "scatter")
        finish = back(target, output)
        dtype, parts = form(output)
        description = Description(
            _ffi.SCATTER, dtype, output.numel() * parts, root=root, device=_gpus.device_of(output)
        )
        source, place = None, NOTHING
        if opts.rootRank == self._rank:
            if inputs and isinstance(inputs[0], (list, tuple)):
                inputs = only(inputs, "scatter")
            self._check_room("scatter", inputs, output, ("input", "output"))
            source = joined(inputs)
            splits = tuple(tensor.numel() * parts for tensor in inputs)
            description = description._replace(count=sum(splits), splits=splits)
            place = address(source)
        return self._call(
            "scatter",
            description,
            place,
            address(target),
            (source, target),
            [output],
            finish,
            opts,
            inputs if source is not None else (),
        )

    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        opts = options(AllToAllOptions, opts, timeout=timeout)
        for what, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self._size:
                raise ValueError(
                    f"alltoall: expected {self._size} {what} tensors, one for each rank of the group, got {len(tensors)}"
                )
        check_devices("alltoall", inputs[0], (*inputs, *outputs))
        source = joined(inputs)
        flat, finish = self._flat_room(outputs, source)
        description = self._exchange(
            source, [i.numel() for i in inputs], [o.numel() for o in outputs]
        )
        return self._call(
            "alltoall",
            description,
            address(source),
            address(flat),
            (source, flat),
            list(outputs),
            finish,
            opts,
            inputs,
        )

    def all_to_all_single(
        self, output, input, output_splits, input_splits, opts=None, timeout=None
    ):
        opts = options(AllToAllOptions, opts, timeout=timeout)
        name = "all_to_all_single"
        source, target = packed(input, name), room(output, name)
        finish = back(target, output)
        is_on_host = _gpus.device_of(input) < 0 and _gpus.device_of(output) < 0
        is_equal = is_on_host and not input_splits and not output_splits
        key = is_equal and (input.dtype, input.shape, output.dtype, output.shape, self._size)
        description = _equal.get(key)
        if description is None:
            check_devices(name, input, (output,))
            if output.dtype != input.dtype:
                raise ValueError(f"{name}: the input is {input.dtype}, the output {output.dtype}")
            sent = self._elements(name, "input", input, input_splits)
            received = self._elements(name, "output", output, output_splits)
            description = self._exchange(input, sent, received)
            if is_equal:
                remember(_equal, key, description)
        return self._call(
            name,
            description,
            address(source),
            address(target),
            (source, target),
            [output],
            finish,
            opts,
        )

    alltoall_base = all_to_all_single

    def _elements(self, name, what, tensor, splits):
        """Elements for or from each rank, from rows."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ValueError(
                    f"{name}: the {what} has {rows} rows, which do not divide among {self._size} ranks; give split sizes"
                )
            return [tensor.numel() // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise ValueError(
                f"{name}: the {what} split sizes {list(splits)} must be {self._size} numbers that sum up to its {rows} rows"
            )
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    def _exchange(self, input, sent, received):
        dtype, parts = form(input)
        received = tuple(count * parts for count in received)
        return Description(
            _ffi.ALLTOALL,
            dtype,
            input.numel() * parts,
            splits=tuple(count * parts for count in sent),
            output_splits=received,
            device=_gpus.device_of(input),
            rows=sum(received),
        )

    def barrier(self, opts=None, timeout=None):
        opts = options(BarrierOptions, opts, timeout=timeout)
        return self._call(
            "barrier", Description(_ffi.BARRIER), NOTHING, NOTHING, None, [], None, opts
        )

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        _monitored.meet(self, seconds, wait_all_ranks)
