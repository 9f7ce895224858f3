"""The framework below Keras, which its backend is: how it reduces gradients as one group."""

import keras

BACKEND = keras.backend.backend()

if BACKEND == "torch":
    from rueda.torch import Compression, grouped_allreduce, init  # noqa: F401

    def reduce_group(tensors, **options):
        return grouped_allreduce(tensors, **options)

elif BACKEND == "tensorflow":
    from rueda.tensorflow.compression import Compression  # noqa: F401
    from rueda.tensorflow.mpi_ops import grouped_allreduce, init  # noqa: F401

    def reduce_group(tensors, **options):
        return grouped_allreduce(tensors, **options)

elif BACKEND == "jax":
    from rueda._compression import compressed_group
    from rueda.jax import Compression, allreduce, init  # noqa: F401

    def reduce_group(tensors, compression, **options):
        return compressed_group(allreduce, compression, tensors, **options)


def dense(tensor):
    """A tensor, of what may be TensorFlow's IndexedSlices."""
    return keras.ops.convert_to_tensor(tensor)


def only_when(condition, function, tensors):
    """``function(tensors)`` where the condition holds in this step, else the tensors."""
    if BACKEND != "jax":
        return function(tensors)  # Keras calls it in a branch that is only taken then
    import jax

    return jax.lax.cond(condition, function, list, tensors)
