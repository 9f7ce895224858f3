"""Batch normalisation over the batches of all ranks."""

import keras
import tensorflow as tf

from rueda.common.basics import Sum
from rueda.common.process_sets import global_process_set
from rueda.tensorflow._errors import wrong_argument
from rueda.tensorflow.mpi_ops import grouped_allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization whose mean and variance are those of all ranks' batches.

    Ranks may have batches of different sizes: each example counts once.

    Parameters
    ----------
    fused : bool
        ValueError unless False: Horovod's.
    process_set : ProcessSet
        The ranks that take part.

    The others are those of the layer.
    """

    def __init__(self, fused=False, process_set=global_process_set, **kwargs):
        if fused in (True, None):
            raise wrong_argument("SyncBatchNormalization does not support fused=True.")
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        if self._process_set.size() == 1:
            return mean, variance
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)) if mask is None else tf.math.count_nonzero(mask), mean.dtype)
        of_all = [tf.math.multiply_no_nan(each, count) for each in (mean, variance + tf.square(mean))]
        *sums, count = grouped_allreduce([*of_all, count], op=Sum, process_set=self._process_set)
        mean, squares = (each / count for each in sums)
        return mean, squares - tf.square(mean)
