"""From one rank to another, and the barrier: the same inside ``jax.jit`` as outside of it.

Inside they stay in the order in which they stand, also among the collectives of their program.
"""

import jax
import jax.numpy as jnp

from rueda import _ffi, _waiting
from rueda._numbers import whole_number
from rueda._runtime import runtime
from rueda.common.process_sets import global_process_set, id_for_operation
from rueda.jax._internals import core
from rueda.jax._library import jax_errors
from rueda.jax._messages import message
from rueda.jax._primitive import Spec
from rueda.jax.collectives import check_dtype


def _member(kind, peer, tag, count=1):
    place = runtime.require_running()
    word = "dst" if kind == _ffi.SEND else "src"
    peer, tag = whole_number(word, peer), whole_number("tag", tag, 0, 32)
    if not 0 <= peer < place.size or peer == place.rank:
        raise ValueError(f"{word}={peer!r}: expected another rank, 0 to {place.size - 1}")
    return Spec(kind, peer=peer, tag=tag, rank=place.rank, world=place.size), count


def _sent(kind, x):
    arrays = [jnp.asarray(each) for each in jax.tree.leaves(x)]
    for each in arrays:
        check_dtype(kind, each)
    return arrays


def _awaited(kind, like):
    leaves, form = jax.tree.flatten(like)
    for each in leaves:
        check_dtype(kind, each)
    return [(each.shape, each.dtype) for each in leaves], form


def send(x, dst, tag=0):
    """Sends an array, or a pytree of them, to rank ``dst``; matched with `recv` by (ranks, tag) in order.

    Inside of ``jit`` the program goes on behind it once the arrays have been received.
    """
    arrays = _sent("send", x)
    members = [_member(_ffi.SEND, dst, tag) for _ in arrays]
    if arrays:
        message(arrays, members, [])


def recv(like, src, tag=0):
    """Returns what rank ``src`` sends.

    Parameters
    ----------
    like : array, jax.ShapeDtypeStruct or pytree of them
        Of the shapes and dtypes that are sent; values are not looked at.
    src : int
        A rank of the job, not this one.
    tag : int
        Tells messages apart; each tag is in order.
    """
    results, form = _awaited("recv", like)
    members = [_member(_ffi.RECV, src, tag) for _ in results]
    return jax.tree.unflatten(form, message([], members, results) if results else [])


def sendrecv(x, dst, src, *, like=None, tag=0):
    """Sends ``x`` to rank ``dst`` while it receives, and returns, what rank ``src`` sends.

    ``like``: as of `recv`; without it what comes is like ``x``. For rings and exchanges, where ranks that
    all send first would wait for each other.
    """
    arrays = _sent("sendrecv", x)
    results, form = _awaited("sendrecv", jax.tree.map(jnp.asarray, x) if like is None else like)
    members = [_member(_ffi.SEND, dst, tag) for _ in arrays]
    members += [_member(_ffi.RECV, src, tag) for _ in results]
    return jax.tree.unflatten(form, message(arrays, members, results) if members else [])


def barrier(process_set=global_process_set):
    """Inside of ``jit`` what stands after it, of messages and collectives, starts once all ranks have come.

    Outside it returns then.
    """
    if core.trace_state_clean():
        with jax_errors():
            _waiting.barrier(process_set)
        return
    place = runtime.require_running()
    spec = Spec(
        _ffi.BARRIER,
        process_set=id_for_operation(process_set),
        rank=place.rank,
        world=place.size,
    )
    message([], [(spec, 1)], [])
