"""Operations that reduce: allreduce, reduce, reduce_scatter, with their coalesced forms."""

from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from rueda import _ffi
from rueda._ordered_groups import NOTHING, Description, remember
from rueda.torch.distributed import _gpus, _sparse
from rueda.torch.distributed._options import only, options, root_of
from rueda.torch.distributed._reductions import code_of
from rueda.torch.distributed._shared_memory import buckets
from rueda.torch.distributed._tensors import (
    address,
    back,
    check_devices,
    copied,
    joined,
    packed,
    reduced_dtype,
    room,
)

_plain = {}  # (operation, dtype, elements, device): description of a sum of a tensor as it is
_divided = {}  # (description of a sum, elements of each, ranks): its description where each rank gets a part


class Reducing:
    """A part of `ProcessGroup`."""

    def allreduce(self, tensors, opts=None, op=None, timeout=None):
        if type(opts) is not AllreduceOptions:
            opts = options(AllreduceOptions, opts, op, None, timeout)
        tensor = only(tensors, "allreduce")
        if tensor.is_sparse:
            return _sparse.allreduce(self, tensor, opts)
        target, description, factor = self._summand("allreduce", tensor, opts)
        finish = back(target, tensor)

        if factor is not None:
            target.mul_(factor)
        bucket = buckets.of(tensor) if target is tensor else None
        if bucket is None:
            place = address(target)
        else:
            place = bucket.place(tensor.untyped_storage())
            finish = bucket.begun()
        return self._call("allreduce", description, place, place, target, [tensor], finish, opts)

    def _summand(self, name, tensor, opts):
        """(memory, its call, a tensor to multiply with before or None) of one tensor that is reduced in place."""
        target, op = packed(tensor, name), opts.reduceOp
        device = _gpus.device_of(tensor)
        key = op.op, tensor.dtype, tensor.numel(), device
        description = _plain.get(key)
        if description is not None:
            return target, description, None
        code, factor = code_of(op, name)
        dtype = reduced_dtype(tensor, code, name)
        scale, before = (factor, None) if type(factor) is float else (1.0, factor)
        if before is not None and target is tensor:
            target = tensor.detach().clone()
        description = Description(
            _ffi.ALLREDUCE,
            dtype,
            target.numel(),
            code,
            prescale=scale,
            device=device,
        )
        if key[0] != ReduceOp.PREMUL_SUM:
            remember(_plain, key, description)
        return target, description, before

    def allreduce_coalesced(self, tensors, opts=None):
        opts = options(AllreduceCoalescedOptions, opts)
        parts = [self._summand("allreduce_coalesced", tensor, opts) for tensor in tensors]
        for target, _, factor in parts:
            if factor is not None:
                target.mul_(factor)
        places = [address(target) for target, _, _ in parts]

        def finish(_):
            for tensor, (target, _, _) in zip(tensors, parts):
                if target is not tensor:
                    copied(target, tensor)

        return self._as_one(
            "allreduce_coalesced",
            [d for _, d, _ in parts],
            places,
            places,
            parts,
            list(tensors),
            finish,
            opts,
            tensors,
        )

    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None):
        opts = options(ReduceOptions, opts, op, root, timeout)
        tensor = only(tensors, "reduce")
        root = root_of(self, opts, "reduce")
        target, description, factor = self._summand("reduce", tensor, opts)
        if factor is not None:
            target.mul_(factor)
        is_root = opts.rootRank == self._rank
        finish = back(target, tensor) if is_root else None

        place = address(target)
        description = description._replace(kind=_ffi.REDUCE, root=root)
        return self._call(
            "reduce",
            description,
            place,
            place if is_root else NOTHING,
            target,
            [tensor],
            finish,
            opts,
        )

    def reduce_scatter(self, outputs, inputs, opts=None, op=None, timeout=None):
        opts = options(ReduceScatterOptions, opts, op, None, timeout)
        output = only(outputs, "reduce_scatter")
        if inputs and isinstance(inputs[0], (list, tuple)):
            inputs = only(inputs, "reduce_scatter")
        if len(inputs) != self._size:
            raise ValueError(
                f"reduce_scatter: expected {self._size} input tensors, one for each rank of the group, got {len(inputs)}"
            )
        if inputs[self._rank].numel() != output.numel():
            raise ValueError(
                f"reduce_scatter: the output has {output.numel()} elements, but the input for this rank "
                f"{inputs[self._rank].numel()}"
            )
        check_devices("reduce_scatter", output, inputs)
        splits = tuple(tensor.numel() for tensor in inputs)
        return self._scatter_sum("reduce_scatter", output, joined(inputs), splits, opts, inputs)

    def reduce_scatter_single(self, output, input, opts=None):
        opts = options(ReduceScatterOptions, opts)
        return self._scatter_sum("reduce_scatter_single", output, input, None, opts)

    _reduce_scatter_base = reduce_scatter_single

    def _scatter_sum(self, name, output, input, splits, opts, given=None):
        self._check_divided(name, output, input, splits)
        source, description, factor = self._summand(name, input, opts)
        if factor is not None:
            source = source * factor if source is input else source.mul_(factor)
        target = room(output, name)
        finish = back(target, output)

        return self._call(
            name,
            self._scattering(description, output, splits),
            address(source),
            address(target),
            (source, target),
            [output],
            finish,
            opts,
            given,
        )

    def _check_divided(self, name, output, input, splits):
        check_devices(name, output, (input,))
        if splits is None and input.numel() != output.numel() * self._size:
            raise ValueError(
                f"{name}: the input must have {self._size} times the output's elements, one part for each rank, but "
                f"has {input.numel()} where the output has {output.numel()}"
            )
        if input.dtype != output.dtype:
            raise ValueError(f"{name}: the input is {input.dtype}, the output {output.dtype}")

    def _scattering(self, description, output, splits):
        key = description, output.numel() if splits is None else splits, self._size
        scattering = _divided.get(key)
        if scattering is None:
            splits = (output.numel(),) * self._size if splits is None else splits
            scattering = description._replace(kind=_ffi.REDUCESCATTER, output_splits=tuple(splits))
            remember(_divided, key, scattering)
        return scattering

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = options(ReduceScatterOptions, opts)
        name = "reduce_scatter_single_coalesced"
        descriptions, sources, targets = [], [], []
        for output, input in zip(outputs, inputs):
            self._check_divided(name, output, input, None)
            source, description, factor = self._summand(name, input, opts)
            if factor is not None:
                source = source * factor
            descriptions.append(self._scattering(description, output, None))
            sources.append(source)
            targets.append(room(output, name))

        def finish(_):
            for target, output in zip(targets, outputs):
                if target is not output:
                    copied(target, output)

        return self._as_one(
            name,
            descriptions,
            [address(t) for t in sources],
            [address(t) for t in targets],
            (sources, targets),
            list(outputs),
            finish,
            opts,
            inputs,
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
