"""Optimizers of Keras, and those of tf.compat.v1.train, with gradients that are the same on all ranks."""

import tensorflow as tf

from rueda._frameworks import check_groups, check_predivide
from rueda.common.basics import Adasum, Average
from rueda.common.process_sets import global_process_set
from rueda.tensorflow._errors import arguments, wrong_argument
from rueda.tensorflow.compression import Compression
from rueda.tensorflow.gradient_tape import Local, reduce_gradients


def DistributedOptimizer(
    optimizer,
    name=None,
    use_locking=False,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """An optimizer like this one that reduces gradients over all ranks before it uses them.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or tf.compat.v1.train.Optimizer
        The first goes to `rueda.keras.DistributedOptimizer`, whose parameters these are; of the second
        ``compute_gradients`` reduces, once for each step (``backward_passes_per_step=1``).
    scale_local_gradients : bool
        Gradients of what is given to the result's ``register_local_var`` are divided by the number of ranks.
    """
    with arguments():
        check_groups(groups, num_groups)
        check_predivide(gradient_predivide_factor, op)
    if op == Adasum and average_aggregated_gradients:
        raise wrong_argument("op=Adasum and average_aggregated_gradients=True do not go together")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step != 1:
            raise wrong_argument("backward_passes_per_step is for optimizers of Keras")
        return _Wrapped(
            optimizer,
            name or f"Distributed{type(optimizer).__name__}",
            use_locking,
            lambda grads: reduce_gradients(
                grads, op, compression, gradient_predivide_factor, process_set, sparse_as_dense
            ),
            Local(process_set, scale_local_gradients),
        )
    from rueda.keras.optimizer import DistributedOptimizer as of_keras

    with arguments():
        return of_keras(
            optimizer,
            name,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )


class _Wrapped(tf.compat.v1.train.Optimizer):
    """Reduces what the optimizer inside of it computes; all else is that one's."""

    def __init__(self, optimizer, name, use_locking, reduce, local):
        super().__init__(use_locking, name)
        self._optimizer = optimizer
        self._reduce = reduce
        self._local = local

    def register_local_var(self, var):
        """Gradients of this variable stay the rank's own."""
        self._local.add(var)

    def compute_gradients(self, *args, **kwargs):
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = map(list, zip(*pairs)) if pairs else ([], [])
        return list(zip(self._local.reduced(grads, variables, self._reduce), variables))

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self):
        return self._optimizer.variables()
