"""What a training program begins with: equal parameters, and JAX's own world of processes."""

import functools
import socket

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rueda import _objects
from rueda._dtypes import CODES
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.jax._library import jax_errors
from rueda.jax.collectives import broadcast


def is_key(leaf):
    """Is it an array of random keys?"""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_bits(leaf):
    """What travels bit by bit: random keys as their data, types that the runtime does not know as unsigned bytes."""
    if is_key(leaf):
        return jax.random.key_data(leaf)
    leaf = jnp.asarray(leaf)
    if leaf.dtype.name in CODES:
        return leaf
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf.astype(jnp.uint8)  # integers of 2 and 4 bits, of which each value is another byte
    bits = jnp.finfo(leaf.dtype).bits
    return lax.bitcast_convert_type(leaf, f"uint{bits}").astype(jnp.uint8)


def _of_bits(bits, old):
    """The leaf that `_as_bits` has made of one like ``old``."""
    if is_key(old):
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(old))
    dtype = jnp.asarray(old).dtype
    if dtype == bits.dtype:
        return bits
    if not jnp.issubdtype(dtype, jnp.floating):
        return bits.astype(dtype)
    return lax.bitcast_convert_type(bits.astype(f"uint{jnp.finfo(dtype).bits}"), dtype)


@functools.wraps(_objects.broadcast_object)
def broadcast_object(*arguments, **named):
    with jax_errors():
        return _objects.broadcast_object(*arguments, **named)


@functools.wraps(_objects.allgather_object)
def allgather_object(*arguments, **named):
    with jax_errors():
        return _objects.allgather_object(*arguments, **named)


def broadcast_parameters(pytree, root_rank, process_set=global_process_set):
    """Returns ``root_rank``'s pytree on every rank, sent as one group.

    Parameters
    ----------
    pytree : pytree of arrays
        Parameters, optimizer state, random keys: any dtype, of the same structure on all ranks. JAX's
        arrays cannot be written to, so use what is returned.
    root_rank : int
        A rank of the job, member of ``process_set``.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    """
    leaves, form = jax.tree.flatten(pytree)
    for each in leaves:
        if isinstance(each, (np.ndarray, np.generic)) and jax.dtypes.canonicalize_dtype(each.dtype) != each.dtype:
            raise ValueError(
                f"broadcast_parameters: JAX makes {jax.dtypes.canonicalize_dtype(each.dtype)} of NumPy's {each.dtype}, and would "
                "lose bits: set jax_enable_x64, convert it first, or use rueda.broadcast"
            )
    sent = broadcast([_as_bits(each) for each in leaves], root_rank, process_set=process_set)
    return jax.tree.unflatten(form, [_of_bits(new, old) for new, old in zip(sent, leaves)])


def initialize_distributed(**options):
    """`jax.distributed.initialize` for the ranks of this job: one JAX process for each rank.

    Collective; call it after `init` and before anything of JAX that computes. Rank 0 finds the port at
    which they meet. ``options`` go to JAX as they are.
    """
    address = None
    if basics.rank() == 0:
        one_host = basics.local_size() == basics.size()
        host = "127.0.0.1" if one_host else socket.getfqdn()
        with socket.socket() as probe:
            probe.bind(("", 0))
            address = f"{host}:{probe.getsockname()[1]}"
    address = broadcast_object(address, 0, "rueda.jax.coordinator")
    jax.distributed.initialize(address, basics.size(), basics.rank(), **options)
