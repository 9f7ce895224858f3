"""The primitive behind send, recv, sendrecv and barrier: in order, without derivatives or batches."""

import functools

from rueda import _ffi
from rueda.jax import _library
from rueda.jax._internals import ad, batching, core, dispatch, forget_failed_tokens, refuse_in_checkpoint
from rueda.jax._primitive import IN_ORDER

forget_failed_tokens(IN_ORDER)
refuse_in_checkpoint(
    IN_ORDER,
    "rueda.jax: send, recv, sendrecv and barrier cannot be in jax.checkpoint, which would do them again; call them outside of it",
)
MESSAGES = (_ffi.SEND, _ffi.RECV, _ffi.BARRIER)

message_p = core.Primitive("rueda_message")
message_p.multiple_results = True
message_p.def_impl(functools.partial(dispatch.apply_primitive, message_p))


@message_p.def_effectful_abstract_eval
def _shapes(*arrays, members, results):
    return list(results), {IN_ORDER}


def message(sent, members, results):
    """What came.

    Parameters
    ----------
    sent : list of arrays
        Those of members that send, in their order.
    members : list of (Spec, number of arrays)
    results : list of (shape, dtype)
        Of members that receive, in their order.
    """
    _library.attach()
    avals = tuple(core.ShapedArray(shape, dtype) for shape, dtype in results)
    return message_p.bind(*sent, members=tuple(members), results=avals)


def _no_derivatives(arrays, tangents, **_):
    raise NotImplementedError(
        "rueda.jax: send and recv have no derivatives; use lax.stop_gradient, or a custom_vjp that sends "
        "the gradient back"
    )


def _no_batches(arrays, dims, **_):
    raise NotImplementedError(
        "rueda.jax: send and recv cannot be in vmap; send the whole batch outside of it"
    )


ad.primitive_jvps[message_p] = _no_derivatives
batching.primitive_batchers[message_p] = _no_batches
