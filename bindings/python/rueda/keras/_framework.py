"""The framework below Keras, which its backend is: how it reduces gradients as one group, and what a lost rank's error is."""

import weakref

import keras

from rueda._runtime import runtime
from rueda.elastic import _arrays

BACKEND = keras.backend.backend()

if BACKEND == "torch":
    from rueda._waiting import join  # noqa: F401
    from rueda.torch import Compression  # noqa: F401
    from rueda.torch import grouped_allreduce as reduce_group  # noqa: F401

    def text_of_loss(error):
        """None: a lost rank's error is a HorovodInternalError."""

elif BACKEND == "tensorflow":
    from rueda._waiting import join  # noqa: F401
    from rueda.tensorflow._library import text_of_loss  # noqa: F401
    from rueda.tensorflow.compression import Compression  # noqa: F401
    from rueda.tensorflow.mpi_ops import grouped_allreduce as reduce_group  # noqa: F401
elif BACKEND == "jax":
    from rueda._compression import compressed_group
    from rueda.jax import Compression, allreduce, join  # noqa: F401
    from rueda.jax._library import text_of_loss  # noqa: F401

    def reduce_group(tensors, compression, **options):
        return compressed_group(allreduce, compression, tensors, **options)


def own_layers():
    """Classes of rueda that a saved model may have, by their names."""
    if BACKEND != "tensorflow":
        return {}
    from rueda.tensorflow.sync_batch_norm import SyncBatchNormalization

    return {"SyncBatchNormalization": SyncBatchNormalization}


def dense(tensor):
    """A tensor, of what may be TensorFlow's IndexedSlices."""
    if BACKEND == "tensorflow":  # of which Keras takes slices for tensors
        import tensorflow as tf

        return tf.convert_to_tensor(tensor)
    return keras.ops.convert_to_tensor(tensor)


def only_when(condition, function, tensors):
    """``function(tensors)`` where the condition holds in this step, else the tensors."""
    if BACKEND != "jax":
        return function(tensors)  # Keras calls it in a branch that is only taken then
    import jax

    return jax.lax.cond(condition, function, list, tensors)


def settle(model):
    """On the JAX backend variables have their values while steps are under way only when asked to."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def drop_steps(model):
    """What steps under way have given is not put into the variables any more, which are about to be assigned."""
    if hasattr(model, "_jax_state"):
        model._jax_state = None


steps_made_outside = weakref.WeakSet()  # reductions of optimizers whose steps may have been compiled without the other ranks


def is_outside():
    """Whether this rank joins a running job, and has no peers yet. Scripts of Horovod train for a batch there, to build the optimizer."""
    return runtime.epoch is not None and runtime.epoch.provisional


def _require_new_steps(state):
    """RuntimeError if a step that was compiled there may be left, which would not reduce anything."""
    if steps_made_outside and BACKEND != "torch":  # where nothing is compiled
        raise RuntimeError(
            "this rank has trained before elastic.run had let it into the running job, and the model is none of a "
            "KerasState, which has it compiled anew: pass the model in one, or train in the training function only"
        )


_arrays.before_training.append(_require_new_steps)
