"""The primitive behind all collectives: its shapes, names, derivatives and batches.

Everything that is asked of ``jax._src`` is in this file. An equation has an effect of its own, which
JAX neither drops nor orders: ranks match collectives by name. Names are made when a program is
lowered, so a rank that only traces one changes nothing; each place in a program has its own, also
where JAX would lower a function once for all its calls.
"""

import atexit
import collections
import dataclasses
import functools

import jax
import numpy as np
from jax import lax
from jax._src import core, dispatch, effects
from jax._src.interpreters import ad, batching, mlir
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext

from rueda import _ffi
from rueda._runtime import runtime
from rueda.common import basics
from rueda.jax import _library

LINEAR = (basics.Average, basics.Sum)
_IN_PARTS = (_ffi.ALLGATHER, _ffi.ALLTOALL, _ffi.REDUCESCATTER)  # along the first dimension
_WORDS = {
    _ffi.ALLREDUCE: "allreduce",
    _ffi.ALLGATHER: "allgather",
    _ffi.BROADCAST: "broadcast",
    _ffi.REDUCESCATTER: "reducescatter",
    _ffi.ALLTOALL: "alltoall",
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """What one collective is, without its arrays."""

    kind: int
    op: int = basics.Sum
    root: int = 0  # a rank of the job
    process_set: int = 0
    size: int = 1  # members
    place: int = 0  # this rank's among them
    rank: int = 0  # of this process, in the job
    prescale: float = 1.0
    postscale: float = 1.0
    name: "str | None" = None

    def but(self, suffix, **changes):
        """Another one that belongs to it: its name is this one's with the suffix."""
        name = None if self.name is None else f"{self.name}.{suffix}"
        return dataclasses.replace(self, name=name, **changes)

    def rows(self, count):
        """First extent of the result."""
        if self.kind == _ffi.ALLGATHER:
            return count * self.size
        if self.kind == _ffi.REDUCESCATTER:
            return _ffi.library.rueda_split_rows(count, self.place, self.size)
        return count


class CollectiveEffect(effects.Effect):
    """Of equations that talk to other ranks."""

    def __repr__(self):
        return "rueda"


_EFFECT = CollectiveEffect()
for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(CollectiveEffect)

collective_p = core.Primitive("rueda_collective")
collective_p.multiple_results = True
collective_p.def_impl(functools.partial(dispatch.apply_primitive, collective_p))


@collective_p.def_effectful_abstract_eval
def _shapes(*arrays, spec):
    results = []
    for array in arrays:
        shape = array.shape
        if spec.kind in _IN_PARTS:
            shape = (spec.rows(shape[0]), *shape[1:])
        results.append(core.ShapedArray(shape, array.dtype))
    return results, {_EFFECT}


def collective(arrays, spec):
    """The results, of one operation or of a group that is ready together or not at all."""
    _library.attach()
    return collective_p.bind(*arrays, spec=spec)


# Derivatives.


def _jvp(arrays, tangents, *, spec):
    results = collective_p.bind(*arrays, spec=spec)
    if all(type(each) is ad.Zero for each in tangents):
        return results, [ad.Zero(core.typeof(each).to_tangent_aval()) for each in results]
    if spec.kind in (_ffi.ALLREDUCE, _ffi.REDUCESCATTER) and spec.op not in LINEAR:
        raise NotImplementedError(
            f"rueda.jax: {_WORDS[spec.kind]} has derivatives with op=Average and op=Sum only; "
            "use lax.stop_gradient where none is wanted"
        )
    moving = [i for i, each in enumerate(arrays) if jax.numpy.issubdtype(each.dtype, np.inexact)]
    moved = collective_p.bind(
        *(ad.instantiate_zeros(tangents[i]) for i in moving), spec=spec.but("tangent")
    )
    out = [ad.Zero(core.typeof(each).to_tangent_aval()) for each in results]
    for i, each in zip(moving, moved):
        out[i] = each
    return results, out


ad.primitive_jvps[collective_p] = _jvp


def _transpose(cotangents, *arrays, spec):
    wanted = [i for i, each in enumerate(arrays) if ad.is_undefined_primal(each)]
    given = [ad.instantiate_zeros(cotangents[i]) for i in wanted]
    results = [None] * len(arrays)
    for i, each in zip(wanted, _gradients(given, [arrays[i].aval.shape for i in wanted], spec)):
        results[i] = each
    return results


ad.primitive_transposes[collective_p] = _transpose


def _gradients(grads, shapes, spec):
    """Horovod's, as in rueda.torch: of the inputs, from those of the results."""
    average = spec.but(
        "backward", kind=_ffi.ALLREDUCE, op=basics.Average, prescale=1.0, postscale=1.0
    )
    if spec.kind == _ffi.BROADCAST:
        reduced = collective_p.bind(*grads, spec=average)
        return reduced if spec.rank == spec.root else [each * 0 for each in reduced]
    if spec.kind == _ffi.ALLGATHER:
        reduced = collective_p.bind(*grads, spec=average)
        return [
            lax.slice_in_dim(each, spec.place * shape[0], (spec.place + 1) * shape[0])
            for each, shape in zip(reduced, shapes)
        ]
    if spec.kind == _ffi.REDUCESCATTER:
        if any(shape[0] % spec.size for shape in shapes):
            raise NotImplementedError(
                f"rueda.jax: reducescatter has derivatives where its rows can be divided by the "
                f"{spec.size} ranks; fill the array up to such a number"
            )
        factor = spec.prescale * spec.postscale * (spec.size if spec.op == basics.Sum else 1)
        gather = spec.but("backward", kind=_ffi.ALLGATHER, prescale=1.0, postscale=1.0)
        gathered = collective_p.bind(*grads, spec=gather)
        return gathered if factor == 1.0 else [each * factor for each in gathered]
    return collective_p.bind(*grads, spec=spec.but("backward"))


def _batch(arrays, dims, *, spec):
    """A batch travels whole, in one operation."""
    to = 1 if spec.kind in _IN_PARTS else 0
    moved = [
        each if dim is None else jax.numpy.moveaxis(each, dim, to)
        for each, dim in zip(arrays, dims)
    ]
    out = [None if dim is None else to for dim in dims]
    return collective_p.bind(*moved, spec=spec), out


batching.primitive_batchers[collective_p] = _batch


# Lowering.


class _Lowered(dict):
    """What a program's lowering has made once and may use again: nothing that talks to other ranks.

    Two calls of one function are two places, whose collectives have different names.
    """

    def __init__(self):
        super().__init__()
        self.names = set()
        self.unnamed = collections.Counter()

    def __setitem__(self, key, value):
        if not _talks(key):
            super().__setitem__(key, value)


def _talks(key):
    parts = (key, *key) if isinstance(key, tuple) else (key,)
    return any(_EFFECT in (getattr(part, "effects", None) or ()) for part in parts)


def _follow_lowerings(init):
    @functools.wraps(init)
    def made(self, *args, **kwargs):
        for name in ("lowering_cache", "cached_primitive_lowerings"):
            if kwargs.get(name) is None:
                kwargs[name] = _Lowered()
        init(self, *args, **kwargs)

    return made


mlir.ModuleContext.__init__ = _follow_lowerings(mlir.ModuleContext.__init__)


def _name(ctx, spec):
    """One that no other place of this program has, the same on all ranks."""
    program = ctx.module_context.lowering_cache
    if spec.name is None:
        module = ctx.module_context.module.operation.attributes["sym_name"].value
        shapes = ",".join(
            f"{each.dtype}[{'x'.join(map(str, each.shape))}]" for each in ctx.avals_in[:3]
        )
        key = f"jax.{module}.{_WORDS[spec.kind]}.{shapes}"
        program.unnamed[key] += 1
        return f"{key}.{program.unnamed[key]}"
    name = spec.name
    if "rematted_computation" in str(ctx.name_stack):  # jax.checkpoint does it once more
        name += ".again"
    if name in program.names:
        raise ValueError(
            f"rueda.jax: the name {name!r} stands twice in one program; give each place its own, or none"
        )
    program.names.add(name)
    return name


def _require_one_device(context):
    axes = context.axis_context
    if isinstance(axes, ShardingContext) and axes.num_devices > 1:
        raise ValueError(
            f"rueda.jax: this computation is spread over {axes.num_devices} devices, and a rank has one "
            "for collectives: call them outside of it, or within jax.shard_map"
        )
    if isinstance(axes, SPMDAxisContext):
        mine = [d for d in axes.mesh.devices.flat if d.process_index == jax.process_index()]
        if len(mine) > 1:
            raise ValueError(
                f"rueda.jax: this computation is spread over {len(mine)} devices of this process, and a "
                "rank has one for collectives: start a rank for each device"
            )


def _lower(ctx, *operands, spec):
    _require_one_device(ctx.module_context)
    rule = jax.ffi.build_ffi_lowering_function(_library.TARGET, has_side_effect=True)
    call = rule(
        ctx,
        *operands,
        kind=np.int32(spec.kind),
        op=np.int32(spec.op),
        root=np.int32(spec.root),
        process_set=np.int32(spec.process_set),
        prescale=np.float64(spec.prescale),
        postscale=np.float64(spec.postscale),
        name=_name(ctx, spec),
    )
    return call.results


mlir.register_lowering(collective_p, _lower, platform="cpu", cacheable=False)


@atexit.register
def _leave():
    """Before JAX waits for computations that are under way: they end, with errors that nobody wants."""
    runtime.shutdown()
    try:
        dispatch.runtime_tokens.block_until_ready()
    except jax.errors.JaxRuntimeError:
        dispatch.runtime_tokens.clear()
