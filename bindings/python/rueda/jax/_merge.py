"""Collectives of one body that do not depend on each other become one call of XLA.

XLA runs a small program's calls one after the other, and may let the memory of one wait for another's
end in a large one. Ranks whose collectives come in different orders would then wait for each other for
ever. In a body (a program with all it calls, the body of a loop, a branch) a collective's level is the
number of collectives on its longest way of dependence: those of one level are one equation, which
starts them all. Levels follow one another by their data, so nothing is left for XLA to order.
"""

import collections

from rueda.jax._internals import called_body, core, effects, rewrite_before_lowering
from rueda.jax._primitive import collective_p, talks

collectives_p = core.Primitive("rueda_collectives")  # only made here: members=((spec, count), ...)
collectives_p.multiple_results = True

# Of the name stack, where JAX does a collective once more: jax.checkpoint, and while_loop's condition
# in a batch.
_AGAIN = ("rematted_computation", "body_pred")


def _merged(jaxpr, name_stack):
    if not talks(jaxpr):
        return jaxpr
    eqns, outvars = _flat(jaxpr, name_stack)
    return jaxpr.replace(eqns=_by_level(eqns), outvars=outvars)


rewrite_before_lowering(_merged)


def _flat(jaxpr, name_stack):
    """Its equations, and those of what it calls that has collectives, with variables of their own."""
    eqns = []

    def inline(body, values, outer):
        def read(atom):
            return atom if isinstance(atom, core.Literal) else values[atom]

        for eqn in body.eqns:
            stack = outer + eqn.source_info.name_stack
            if any(word in str(name_stack + stack) for word in _AGAIN):
                eqn = _again(eqn)
            given = [read(each) for each in eqn.invars]
            called = called_body(eqn) if talks(eqn) else None
            if called:
                inner, consts = called
                bound = [core.Literal(c, v.aval) for c, v in zip(consts, inner.constvars)]
                of_inner = dict(zip((*inner.constvars, *inner.invars), (*bound, *given)))
                values.update(zip(eqn.outvars, inline(inner, of_inner, stack)))
            else:
                out = [core.Var(each.aval) for each in eqn.outvars]
                values.update(zip(eqn.outvars, out))
                source = eqn.source_info.replace(name_stack=stack)
                eqns.append(eqn.replace(invars=given, outvars=out, source_info=source))
        return [read(each) for each in body.outvars]

    own = {each: each for each in (*jaxpr.constvars, *jaxpr.invars)}
    outvars = inline(jaxpr, own, type(name_stack)())
    return eqns, outvars


def _again(eqn):
    """The equation whose collectives, also of inner bodies, have other names than where they stood first."""
    if eqn.primitive is collective_p:
        spec = eqn.params["spec"]
        if spec.name is None or spec.name.endswith(".again"):
            return eqn
        return eqn.replace(params={"spec": spec.but("again")})
    if not talks(eqn):
        return eqn
    return eqn.replace(params={key: _with_again(value) for key, value in eqn.params.items()})


def _with_again(value):
    if isinstance(value, tuple):
        return tuple(map(_with_again, value)) if any(map(talks, value)) else value
    if not talks(value):
        return value
    if isinstance(value, core.ClosedJaxpr):
        return value.map_jaxpr(_with_again)
    return value.replace(eqns=list(map(_again, value.eqns)))


def _by_level(eqns):
    """The equations in an order that their data allow, collectives of a level as one."""
    level = {}  # of each variable
    of_ordered = 0  # of what has to stay in order
    collectives = collections.defaultdict(list)
    sorted_by = {}
    for place, eqn in enumerate(eqns):
        own = max((level.get(v, 0) for v in eqn.invars if isinstance(v, core.Var)), default=0)
        if any(map(_is_ordered, eqn.effects)):
            own = of_ordered = max(own, of_ordered)
        if eqn.primitive is collective_p:
            own += 1
            collectives[own].append(eqn)
        else:
            sorted_by[2 * own, place] = eqn
        level.update(dict.fromkeys(eqn.outvars, own))
    for own, members in collectives.items():
        sorted_by[2 * own - 1, 0] = _joined(members)
    return [sorted_by[key] for key in sorted(sorted_by)]


def _is_ordered(effect):
    """Ordered, or of a reference that is read or written."""
    kinds = (effects.JaxprInputEffect, core.InternalMutableArrayEffect)
    return effects.ordered_effects.contains(effect) or isinstance(effect, kinds)


def _joined(eqns):
    return eqns[0].replace(
        primitive=collectives_p,
        invars=[each for eqn in eqns for each in eqn.invars],
        outvars=[each for eqn in eqns for each in eqn.outvars],
        params={"members": tuple((eqn.params["spec"], len(eqn.invars)) for eqn in eqns)},
    )
