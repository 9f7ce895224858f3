"""What a training program begins with: equal parameters, and JAX's own world of processes."""

import socket

import jax
import jax.numpy as jnp
import numpy as np

from rueda._objects import allgather_object, broadcast_object  # noqa: F401
from rueda.common import basics
from rueda.common.process_sets import global_process_set
from rueda.jax.collectives import broadcast


def is_key(leaf):
    """Is it an array of random keys?"""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Returns ``root_rank``'s pytree on every rank, sent as one group.

    Parameters
    ----------
    params : pytree of arrays
        Parameters, optimizer state, random keys: any dtype, of the same structure on all ranks. JAX's
        arrays cannot be written to, so use what is returned.
    root_rank : int
        A rank of the job, member of ``process_set``.
    process_set : ProcessSet
        The ranks that take part; only they may call this.
    """
    leaves, form = jax.tree.flatten(params)
    for each in leaves:
        if isinstance(each, (np.ndarray, np.generic)) and jax.dtypes.canonicalize_dtype(each.dtype) != each.dtype:
            raise ValueError(
                f"broadcast_parameters: JAX makes {jax.dtypes.canonicalize_dtype(each.dtype)} of NumPy's {each.dtype}, and would "
                "lose bits: set jax_enable_x64, convert it first, or use rueda.broadcast"
            )
    plain = [jax.random.key_data(each) if is_key(each) else each for each in leaves]
    sent = broadcast(plain, root_rank, process_set=process_set)
    return jax.tree.unflatten(
        form,
        [
            jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if is_key(old) else new
            for old, new in zip(leaves, sent)
        ],
    )


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
