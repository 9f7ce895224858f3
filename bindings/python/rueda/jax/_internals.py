"""All that is not JAX's public interface, and the places where it is changed."""

import functools
import inspect
import re
import sys

import jax

from jax._src.api import _post_hook_state
from jax._src import config, core, dispatch, effects  # noqa: F401
from jax._src.ad_checkpoint import remat_p
from jax._src.custom_derivatives import custom_jvp_call_p, custom_vjp_call_p
from jax._src.interpreters import ad, batching, mlir, pxla  # noqa: F401
from jax._src.interpreters import partial_eval as pe
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


def runs_at_once():
    """Whether what is called now runs now: outside of transformations, or in derivatives and batches of what no program is made of."""
    trace = core.trace_ctx.trace
    while isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace, pe.JaxprTrace, batching.BatchTrace)):
        trace = trace.parent_trace
    return isinstance(trace, core.EvalTrace)


def is_run_again():
    """Whether JAX runs a program once more, step by step, that gives what is no number: on this rank alone it would wait for ever."""
    return config.debug_nans.value or config.debug_infs.value


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


def forget_failed_tokens(effect):
    """A thread's programs with this ordered effect do not fail because an earlier one has."""
    give = dispatch.RuntimeTokenSet.get_token_input

    @functools.wraps(give)
    def get_token_input(self, eff, devices):
        token = self.current_tokens.get(eff)
        if eff is effect and token is not None and token._buf.is_ready():
            try:
                token.block_until_ready()
            except jax.errors.JaxRuntimeError:
                del self.current_tokens[eff]
        return give(self, eff, devices)

    dispatch.RuntimeTokenSet.get_token_input = get_token_input


def refuse_in_checkpoint(effect, text):
    """A checkpoint of something with this effect cannot be differentiated, which is a NotImplementedError with this text."""
    rule = pe.custom_partial_eval_rules[remat_p]

    @functools.wraps(rule)
    def partial_eval(trace, *tracers, jaxpr, **params):
        if effect in jaxpr.effects:
            raise NotImplementedError(text)
        return rule(trace, *tracers, jaxpr=jaxpr, **params)

    pe.custom_partial_eval_rules[remat_p] = partial_eval


_INLINE = 1000  # XLA's CPU client runs what takes fewer floating-point operations in the thread that asks
_LOOP = re.compile(r"\swhile\(")  # of XLA's


def start_fast(primitive, effect):
    """Programs with this unordered effect are started by JAX's C++, as those without effects, where that changes no error.

    JAX's Python would add a token to wait for, which the results are as well; that takes 100 µs, and 25 µs for each array.
    The C++ makes a ValueError of what fails before it returns, in programs that this thread runs itself: `raise_later` is
    for these. They go on after the failure, so that a loop whose end depends on what has failed could be without end.
    """
    init = pxla.ExecuteReplicated.__init__
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        given = dict(zip(names, args), **kwargs)
        others = [each for each in given["unordered_effects"] if each is not effect]
        if len(others) < len(given["unordered_effects"]) and given["out_handler"].handlers:
            executable = given["xla_executable"]
            if _is_told_later(executable) or not _has_loop(executable):
                given["unordered_effects"] = others
        init(self, **given)

    pxla.ExecuteReplicated.__init__ = made
    primitive.def_impl(functools.partial(dispatch.apply_primitive, primitive))


def _is_told_later(executable):
    """Whether a program is run by another thread, so that its errors come with its results."""
    is_async = jax.config._read("jax_cpu_enable_async_dispatch")
    return is_async and executable.cost_analysis().get("flops", 0) >= _INLINE


def _has_loop(executable):
    return any(_LOOP.search(module.to_string()) for module in executable.hlo_modules())


_IN_PYTHON = inspect.unwrap(pxla.ExecuteReplicated.__call__).__code__


def raise_later(text, raised):
    """The program that this thread runs fails, for its caller, with this text when it has ended, once ``raised()`` is done.

    False where JAX's Python runs it, which makes the right error of what XLA says.
    """
    if sys._getframe(2).f_code is _IN_PYTHON:  # behind _raise
        return False

    def hook(*_):
        _post_hook_state.set_local(before)
        raised()
        raise jax.errors.JaxRuntimeError(text)

    before = _post_hook_state.swap_local(hook)
    return True
