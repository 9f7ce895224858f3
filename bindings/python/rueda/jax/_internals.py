"""All that is not JAX's public interface, and the two places where its lowering is changed."""

import functools

from jax._src import core, dispatch, effects  # noqa: F401
from jax._src.ad_checkpoint import remat_p
from jax._src.custom_derivatives import custom_jvp_call_p, custom_vjp_call_p
from jax._src.interpreters import ad, batching, mlir  # noqa: F401
from jax._src.pjit import jit_p
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext  # noqa: F401

# Equations that are lowered as a call of one body: the parameter that has it.
BODY_OF_CALLS = {
    jit_p: "jaxpr",
    remat_p: "jaxpr",
    core.call_p: "call_jaxpr",
    core.closed_call_p: "call_jaxpr",
    custom_jvp_call_p: "call_jaxpr",
    custom_vjp_call_p: "call_jaxpr",
}


def called_body(eqn):
    """The Jaxpr that an equation calls, and nothing else, and its constants; None where it is no call.

    A checkpoint that is differentiated is none: its inputs pass a barrier.
    """
    if eqn.primitive not in BODY_OF_CALLS or eqn.params.get("differentiated"):
        return None
    body = eqn.params[BODY_OF_CALLS[eqn.primitive]]
    return (body, ()) if isinstance(body, core.Jaxpr) else (body.jaxpr, body.consts)


def rewrite_before_lowering(rewrite):
    """JAX lowers ``rewrite(jaxpr, name_stack)`` instead of each body: a program, of a loop, a branch, ..."""
    lower = mlir.jaxpr_subcomp

    @functools.wraps(lower)
    def jaxpr_subcomp(ctx, jaxpr, name_stack, *args, **kwargs):
        return lower(ctx, rewrite(jaxpr, name_stack), name_stack, *args, **kwargs)

    mlir.jaxpr_subcomp = jaxpr_subcomp


def remember_lowerings_in(cache):
    """What a program's lowering has made once, and may use again, is kept in a ``cache()``."""
    init = mlir.ModuleContext.__init__

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        for name in ("lowering_cache", "cached_primitive_lowerings"):
            if kwargs.get(name) is None:
                kwargs[name] = cache()
        init(self, *args, **kwargs)

    mlir.ModuleContext.__init__ = made
