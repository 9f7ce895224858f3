"""The framework below Keras, which its backend is: how it reduces gradients as one group."""

import keras

BACKEND = keras.backend.backend()

if BACKEND == "torch":
    from rueda.torch import Compression, grouped_allreduce, init  # noqa: F401

    def reduce_group(tensors, **options):
        return grouped_allreduce(tensors, **options)

elif BACKEND == "jax":
    from rueda._compression import compressed_group
    from rueda.jax import Compression, allreduce, init  # noqa: F401

    def reduce_group(tensors, compression, **options):
        return compressed_group(allreduce, compression, tensors, **options)


def only_when(condition, function, tensors):
    """``function(tensors)`` where the condition holds in this step, else the tensors."""
    if BACKEND == "torch":
        return function(tensors)  # which runs a branch only if it is taken
    import jax

    return jax.lax.cond(condition, function, list, tensors)
