"""The primitive behind all collectives: its shapes, derivatives and batches.

An equation has an effect of its own, which JAX neither drops nor orders: ranks match collectives by
name. `_messages` has those that are ordered. `_merge` and `_lowering` make a program of XLA's of it.
"""

import dataclasses

import jax
import numpy as np
from jax import lax

from rueda import _ffi
from rueda._frameworks import WORDS, replaced
from rueda.common import basics
from rueda.jax import _library
from rueda.jax._internals import ad, batching, core, effects, start_fast

LINEAR = (basics.Average, basics.Sum)
_IN_PARTS = (_ffi.ALLGATHER, _ffi.ALLTOALL, _ffi.REDUCESCATTER)  # along the first dimension


@dataclasses.dataclass(frozen=True)
class Spec:
    """What one collective is, without its arrays."""

    kind: int
    op: int = basics.Sum
    root: int = 0  # a rank of the job
    peer: int = 0  # one, too; with the tag, of messages
    tag: int = 0
    process_set: int = 0
    size: int = 1  # members
    place: int = 0  # this rank's among them
    rank: int = 0  # of this process, in the job
    world: int = 1  # the job's size
    prescale: float = 1.0
    postscale: float = 1.0
    name: "str | None" = None
    is_derived: bool = False  # the name is made from one of the user's, and may be made again

    def but(self, suffix, **changes):
        """Another one that belongs to it: its name is this one's with the suffix."""
        if self.name is None:
            return dataclasses.replace(self, **changes)
        return dataclasses.replace(self, name=f"{self.name}.{suffix}", is_derived=True, **changes)

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


class OrderedEffect(effects.Effect):
    """Of messages and barriers, which stay in the order in which they stand."""

    def __repr__(self):
        return "rueda in order"


_EFFECT, IN_ORDER = CollectiveEffect(), OrderedEffect()
effects.ordered_effects.add_type(OrderedEffect)
effects.shardable_ordered_effects.add_type(OrderedEffect)  # over several devices it is _lowering that says no
for _allowed in (effects.lowerable_effects, effects.control_flow_allowed_effects):
    _allowed.add_type(CollectiveEffect)
    _allowed.add_type(OrderedEffect)
for _allowed in (effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects):
    _allowed.add_type(CollectiveEffect)

collective_p = core.Primitive("rueda_collective")
collective_p.multiple_results = True
start_fast(collective_p, _EFFECT)


@collective_p.def_effectful_abstract_eval
def _shapes(*arrays, spec):
    results = []
    for array in arrays:
        shape = array.shape
        if spec.kind in _IN_PARTS:
            shape = (spec.rows(shape[0]), *shape[1:])
        results.append(core.ShapedArray(shape, array.dtype))
    return results, {_EFFECT}


def talks(thing):
    """Has an equation, a Jaxpr, ... collectives or messages in it?"""
    found = getattr(thing, "effects", None) or ()
    return _EFFECT in found or IN_ORDER in found


def collective(arrays, spec):
    """The results, of one operation or of a group that is ready together or not at all."""
    _library.attach()
    return collective_p.bind(*arrays, spec=spec)


# Derivatives.


def _jvp(arrays, tangents, *, spec):
    results = collective_p.bind(*arrays, spec=spec)
    if all(type(each) is ad.Zero for each in tangents):
        return results, [ad.Zero(core.typeof(each).to_tangent_aval()) for each in results]
    _refuse_nonlinear(spec)
    moving = [i for i, each in enumerate(arrays) if jax.numpy.issubdtype(each.dtype, np.inexact)]
    moved = collective_p.bind(
        *(ad.instantiate_zeros(tangents[i]) for i in moving), spec=spec.but("tangent")
    )
    zeros = [ad.Zero(core.typeof(each).to_tangent_aval()) for each in results]
    return results, replaced(zeros, moving, moved)


ad.primitive_jvps[collective_p] = _jvp


def _refuse_nonlinear(spec):
    if spec.kind in (_ffi.ALLREDUCE, _ffi.REDUCESCATTER) and spec.op not in LINEAR:
        raise NotImplementedError(
            f"rueda.jax: {WORDS[spec.kind]} has derivatives with op=Average and op=Sum only; "
            "use lax.stop_gradient where none is wanted"
        )


def _transpose(cotangents, *arrays, spec):
    _refuse_nonlinear(spec)  # of linear_transpose, which asks for no derivative before
    wanted = [i for i, each in enumerate(arrays) if ad.is_undefined_primal(each)]
    given = [ad.instantiate_zeros(cotangents[i]) for i in wanted]
    gradients = _gradients(given, [arrays[i].aval.shape for i in wanted], spec)
    return replaced([None] * len(arrays), wanted, gradients)


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
    if spec.op == basics.Adasum:
        raise NotImplementedError(
            "rueda.jax: vmap would make one vector of a batch, which Adasum takes as a whole; call it "
            "outside of vmap, or use lax.map, which sends one after the other"
        )
    to = 1 if spec.kind in _IN_PARTS else 0
    moved = [
        each if dim is None else jax.numpy.moveaxis(each, dim, to)
        for each, dim in zip(arrays, dims)
    ]
    out = [None if dim is None else to for dim in dims]
    return collective_p.bind(*moved, spec=spec), out


batching.primitive_batchers[collective_p] = _batch
