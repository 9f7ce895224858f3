"""Collectives as calls of librueda_xla.so: their names and attributes.

Names are made when a program is lowered, so a rank that only traces one changes nothing; each place in
a program has its own, also where JAX would lower a function once for all its calls.
"""

import collections
import itertools
import struct

import jax
import numpy as np

from rueda.jax import _library
from rueda.jax._internals import (
    ShardingContext,
    SPMDAxisContext,
    mlir,
    remember_lowerings_in,
)
from rueda.jax._merge import collectives_p
from rueda.jax._primitive import WORDS, talks


class _Lowered(dict):
    """What a program's lowering has made once and may use again: nothing that talks to other ranks.

    Two calls of one function are two places, whose collectives have different names.
    """

    def __init__(self):
        super().__init__()
        self.names = set()
        self.counts = collections.Counter()

    def __setitem__(self, key, value):
        if not any(map(talks, (key, *key) if isinstance(key, tuple) else (key,))):
            super().__setitem__(key, value)


remember_lowerings_in(_Lowered)


def _name(ctx, spec, avals):
    """One that no other place of this program has, the same on all ranks."""
    program = ctx.module_context.lowering_cache
    if spec.name is None:
        module = ctx.module_context.module.operation.attributes["sym_name"].value
        shapes = ",".join(f"{each.dtype}[{'x'.join(map(str, each.shape))}]" for each in avals[:3])
        key = f"jax.{module}.{WORDS[spec.kind]}.{shapes}"
        if spec.process_set:  # other ranks may count in other sets
            key += f".set{spec.process_set}"
        program.counts[key] += 1
        return f"{key}.{program.counts[key]}"
    name = spec.name
    while spec.is_derived and name in program.names:
        program.counts[spec.name] += 1
        name = f"{spec.name}.{program.counts[spec.name]}"
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


def _line(spec, count, name):
    """A member, as collective.cc reads it."""
    bits = struct.unpack("=2Q", struct.pack("=2d", spec.prescale, spec.postscale))
    numbers = (count, spec.kind, spec.op, spec.root, spec.process_set, *bits, len(name.encode()))
    return f"{' '.join(map(str, numbers))} {name}\n"


def _lower(ctx, *operands, members):
    _require_one_device(ctx.module_context)
    avals = iter(ctx.avals_in)
    lines = [
        _line(spec, count, _name(ctx, spec, list(itertools.islice(avals, count))))
        for spec, count in members
    ]
    rule = jax.ffi.build_ffi_lowering_function(_library.TARGET, has_side_effect=True)
    of_world = members[0][0]
    call = rule(
        ctx,
        *operands,
        members="".join(lines),
        rank=np.int32(of_world.rank),
        size=np.int32(of_world.world),
    )
    return call.results


mlir.register_lowering(collectives_p, _lower, platform="cpu", cacheable=False)
