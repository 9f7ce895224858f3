"""Collectives as calls of librueda_xla.so: their names and attributes.

Names are made when a program is lowered, so a rank that only traces one changes nothing; each place in
a program has its own, also where JAX would lower a function once for all its calls.
"""

import collections
import functools
import struct

import jax
import numpy as np

from rueda._frameworks import WORDS
from rueda.jax import _library
from rueda.jax._internals import (
    ShardingContext,
    SPMDAxisContext,
    core,
    mlir,
    remember_lowerings_in,
)
from rueda.jax._merge import collectives_p
from rueda.jax._messages import MESSAGES, message_p
from rueda.jax._primitive import IN_ORDER, talks


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


def _name(ctx, spec):
    """One that no other place of this program has, the same on all ranks."""
    program = ctx.module_context.lowering_cache
    if spec.name is None:
        module = ctx.module_context.module.operation.attributes["sym_name"].value
        key = f"jax.{module}.{WORDS[spec.kind]}"  # no shapes: that they differ is for the runtime to say
        if spec.kind in MESSAGES:
            key += f".{spec.peer}"
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


def require_one_device(context, is_ordered=False):
    """ValueError for a computation that is spread over several; ``is_ordered``: also over those of several processes."""
    axes = context.axis_context
    if is_ordered:
        count = axes.mesh.devices.size if isinstance(axes, SPMDAxisContext) else getattr(axes, "num_devices", 1)
        if count > 1:
            raise ValueError(
                f"rueda.jax: this computation is spread over {count} devices, where messages, barriers and attention cannot be "
                "in order: call them outside of it"
            )
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
    """A member, as collective.cc reads it. It names the arrays of several "name", "name[1]", "name[2]", ..."""
    bits = struct.unpack("=2Q", struct.pack("=2d", spec.prescale, spec.postscale))
    of_kind = (spec.kind, spec.op, spec.root, spec.peer, spec.tag, spec.process_set)
    numbers = " ".join(map(str, (count, *of_kind, *bits, len(name.encode()))))
    return f"{numbers} {name}\n"


def _lower(ctx, *operands, members, is_ordered):
    require_one_device(ctx.module_context, is_ordered)
    lines = [_line(spec, count, _name(ctx, spec)) for spec, count in members]
    rule = jax.ffi.build_ffi_lowering_function(_library.COLLECTIVE, has_side_effect=True)
    first = members[0][0]
    call = functools.partial(
        rule, members="".join(lines), rank=np.int32(first.rank), size=np.int32(first.world)
    )
    return in_order(ctx, operands, call, IN_ORDER) if is_ordered else call(ctx, *operands).results


def in_order(ctx, operands, call, effect):
    """Results of a call that comes behind all before it with that ordered effect; a token says so to XLA."""
    token = core.abstract_token
    with_token = ctx.replace(avals_in=(token, *ctx.avals_in), avals_out=(token, *ctx.avals_out))
    token, *results = call(with_token, ctx.tokens_in.get(effect), *operands).results
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return results


for _platform in ("cpu", "cuda"):
    _library.register(collectives_p, _lower, _platform)


def _lower_message(ctx, *operands, members, results):
    return _lower(ctx, *operands, members=members, is_ordered=True)


for _platform in ("cpu", "cuda"):
    _library.register(message_p, _lower_message, _platform)
