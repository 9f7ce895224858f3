"""The primitives behind attention: forward, and backward for `jax.grad`.

A call follows a plan of `rueda.attention`, which the program refers to by its address. Ranks make their calls
in the same order, which is that of the program: an effect of their own has them pass on a token. What a
forward keeps for its backward is one more array of bytes, which there is where gradients are wanted;
with ``again`` (``save="qkv"``) the backward runs its forward first, which makes it there.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rueda._runtime import runtime
from rueda.jax import _library
from rueda.jax._internals import ad, batching, core, dispatch, effects, forget_failed_tokens
from rueda.jax._lowering import in_order, require_one_device


class AttentionEffect(effects.Effect):
    """Of calls of attention, which stay in the order in which they stand."""

    def __repr__(self):
        return "rueda attention"


IN_ORDER = AttentionEffect()
for _allowed in (
    effects.ordered_effects,
    effects.shardable_ordered_effects,  # over several devices it is _lowering that says no
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(AttentionEffect)
forget_failed_tokens(IN_ORDER)

_NONE = (-1, -1)  # place of a call that needs no job
_lowered = set()  # plans of programs, which may be run as long as the process lives


def attention(plan, threads, save, q, k, v):
    """(out, lse). Starts nothing on other ranks before the program runs."""
    place = _NONE
    if not plan.local:
        _library.attach()
        place = runtime.place.rank, runtime.place.size
    return forward_p.bind(q, k, v, plan=plan, keeps=False, threads=threads, place=place, again=save == "qkv")


def _primitive(name, shapes):
    """One that is lowered to a call of librueda_xla.so; ``shapes(avals, settings)``: of its results."""
    made = core.Primitive(name)
    made.multiple_results = True
    made.def_impl(functools.partial(dispatch.apply_primitive, made))
    made.def_effectful_abstract_eval(lambda *avals, **settings: (shapes(*avals, **settings), {IN_ORDER}))
    return made


def _of_forward(q, k, v, plan, keeps=False, **settings):
    batch, tokens, heads, _ = q.shape
    shapes = [core.ShapedArray(q.shape, q.dtype), core.ShapedArray((batch, heads, tokens), np.float32)]
    return [*shapes, core.ShapedArray((batch, plan.kept_bytes), np.uint8)] if keeps else shapes


def _of_backward(dout, q, k, v, *_, **settings):
    return [core.ShapedArray(each.shape, each.dtype) for each in (q, k, v)]


forward_p = _primitive("rueda_attention", _of_forward)
backward_p = _primitive("rueda_attention_backward", _of_backward)

# The tangents of (out, lse) from those of (q, k, v): only to be transposed.
tangent_p = core.Primitive("rueda_attention_tangent")
tangent_p.multiple_results = True
tangent_p.def_abstract_eval(lambda dq, dk, dv, *_, **settings: _of_forward(dq, dk, dv, **settings))


def _zeros(results):
    return [ad.Zero(core.typeof(each).to_tangent_aval()) for each in results]


def _jvp(primals, tangents, *, keeps, **settings):
    if all(type(each) is ad.Zero for each in tangents):
        results = forward_p.bind(*primals, keeps=keeps, **settings)
        return results, _zeros(results)
    if settings["again"]:
        results = forward_p.bind(*primals, keeps=keeps, **settings)
        moved = tangent_p.bind(*map(ad.instantiate_zeros, tangents), *primals, **settings)
        return results, [*moved, *_zeros(results[2:])]
    out, lse, kept = forward_p.bind(*primals, keeps=True, **settings)
    moved = tangent_p.bind(*map(ad.instantiate_zeros, tangents), *primals, out, lse, kept, **settings)
    return ([out, lse, kept], [*moved, *_zeros([kept])]) if keeps else ([out, lse], moved)


def _transpose(cotangents, *operands, again, **settings):
    dout, dlse = cotangents
    residuals = operands[3:]
    if again:  # they are q, k and v alone
        residuals = [*residuals, *forward_p.bind(*residuals, keeps=True, again=again, **settings)]
    dlse = () if type(dlse) is ad.Zero else (dlse,)
    out = residuals[3]
    dout = jnp.zeros(out.shape, out.dtype) if type(dout) is ad.Zero else dout
    grads = backward_p.bind(dout, *residuals, *dlse, **settings)
    wanted = [g if ad.is_undefined_primal(x) else None for g, x in zip(grads, operands)]
    return [*wanted, *(None for _ in operands[3:])]


ad.primitive_jvps[forward_p] = _jvp
ad.primitive_transposes[tangent_p] = _transpose


def _refusal(text):
    def refuse(*_, **settings):
        raise NotImplementedError(f"rueda.jax: {text}")

    return refuse


# Which was asked for cannot be told: jax.hessian is forward mode of a gradient.
_not_first = _refusal(
    "attention has first derivatives by jax.grad and jax.vjp, but none by jax.jvp, and no second ones (jax.hessian); "
    "ulysses_attention(..., local_attention=f) has all those of f, a function of your own"
)
tangent_p.def_impl(_not_first)
ad.primitive_jvps[tangent_p] = ad.primitive_jvps[backward_p] = _not_first


def _batch(primitive, arrays, dims, *, plan, **settings):
    """One call of all of them: in each array the batch is the first dimension, and becomes larger."""
    count = next(array.shape[dim] for array, dim in zip(arrays, dims) if dim is not None)

    def folded(array, dim):
        if dim is None:
            array = jnp.broadcast_to(array, (count, *array.shape))
        else:
            array = jnp.moveaxis(array, dim, 0)
        return array.reshape(-1, *array.shape[2:])

    of_all = plan.for_batch(count * plan.spec.batch)
    results = primitive.bind(*map(folded, arrays, dims), plan=of_all, **settings)
    return [each.reshape(count, -1, *each.shape[1:]) for each in results], [0] * len(results)


for each in (forward_p, backward_p, tangent_p):
    batching.primitive_batchers[each] = functools.partial(_batch, each)


def _lower(ctx, *operands, plan, threads, place, is_backward, keeps=False, again=False):
    require_one_device(ctx.module_context, is_ordered=True)
    _lowered.add(plan)
    rule = jax.ffi.build_ffi_lowering_function(_library.ATTENTION, has_side_effect=True)
    call = functools.partial(
        rule,
        name=f"attention.set{plan.process_set_id}",
        plan=np.int64(plan.pointer),
        process_set=np.int32(plan.process_set_id),
        threads=np.int32(threads),
        is_local=np.int32(plan.local),
        is_backward=np.int32(is_backward),
        rank=np.int32(place[0]),
        size=np.int32(place[1]),
    )
    return in_order(ctx, operands, call, IN_ORDER)


_library.register(forward_p, functools.partial(_lower, is_backward=False))
_library.register(backward_p, functools.partial(_lower, is_backward=True))
_library.register(tangent_p, _not_first)
_on_gpus = _refusal("attention of arrays on a GPU: put them on the CPU by jax.device_put, or use tensors of PyTorch")
for _each in (forward_p, backward_p):
    _library.register(_each, _on_gpus, "cuda")
