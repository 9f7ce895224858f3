"""Gradient tapes whose gradients are the same on all ranks."""

import tensorflow as tf

from rueda._frameworks import check_predivide, list_of, replaced
from rueda.common.basics import Average
from rueda.common.process_sets import global_process_set
from rueda.tensorflow.compression import Compression
from rueda.tensorflow.mpi_ops import grouped_allreduce


def reduce_gradients(
    grads, op, compression, predivide, process_set, sparse_as_dense=False, name=None
):
    """The reduced gradients, None where there are none; one group but for IndexedSlices.

    A rank that is not in the process set keeps its own.
    """
    if not process_set.included():
        return grads
    present = [i for i, each in enumerate(grads) if each is not None]
    given = [grads[i] for i in present]
    if sparse_as_dense:
        given = [tf.convert_to_tensor(each) for each in given]
    reduced = grouped_allreduce(
        given,
        op=op,
        compression=compression,
        prescale_factor=1.0 / predivide,
        postscale_factor=predivide,
        process_set=process_set,
        name=name,
    )
    return replaced(grads, present, reduced)


def _divided(gradient, number):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / number, gradient.indices, gradient.dense_shape)
    return gradient / number


class _Tape:
    """A tf.GradientTape, but for `gradient`."""

    def __init__(self, tape, reduce, process_set, scale_local, local_sources):
        self._tape = tape
        self._reduce = reduce
        self._process_set = process_set
        self._scale_local = scale_local
        self._local = {id(each) for each in local_sources}

    def __getattr__(self, name):
        return getattr(self._tape, name)

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *exception):
        self._tape.__exit__(*exception)

    def register_local_source(self, source):
        """Gradients of this variable stay the rank's own."""
        self._local.add(id(source))

    def get_local_and_global_gradients(self, grads, sources):
        """The gradients of local sources, and of the others: two lists with None for the rest."""
        local = [id(each) in self._local for each in sources]
        return (
            [g if is_local else None for g, is_local in zip(grads, local)],
            [None if is_local else g for g, is_local in zip(grads, local)],
        )

    def gradient(self, target, sources, output_gradients=None, use_generic_names=False, **options):
        """As tf.GradientTape.gradient, reduced over the ranks; ``use_generic_names`` is Horovod's."""
        grads = self._tape.gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(grads)
        local, others = self.get_local_and_global_gradients(flat, tf.nest.flatten(sources))
        reduced = self._reduce(others)
        if self._scale_local:
            size = self._process_set.size()
            local = [each if each is None else _divided(each, size) for each in local]
        mixed = [one if one is not None else other for one, other in zip(local, reduced)]
        return tf.nest.pack_sequence_as(grads, mixed)


def PartialDistributedGradientTape(
    gradtape,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
):
    """`DistributedGradientTape` that leaves the gradients of some layers to each rank.

    Parameters
    ----------
    local_layers : keras.layers.Layer or list of them
        Built layers whose gradients are not reduced.
    scale_local_gradients : bool
        Divide these by the number of ranks, as the others are.
    """
    check_predivide(gradient_predivide_factor, op)
    sources = [each for layer in list_of(local_layers) for each in layer.trainable_variables]
    sources += [each.value for each in sources if hasattr(each, "value")]

    def reduce(grads):
        return reduce_gradients(
            grads, op, compression, gradient_predivide_factor, process_set, sparse_as_dense
        )

    return _Tape(gradtape, reduce, process_set, scale_local_gradients, sources)


def DistributedGradientTape(
    gradtape,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """A tape like this one, whose `gradient` is reduced over all ranks, as one group.

    Parameters
    ----------
    gradtape : tf.GradientTape
    compression : type
        One of `Compression`.
    sparse_as_dense : bool
        IndexedSlices become tensors first; else they are gathered.
    op : int
        ``Average``, ``Sum`` or ``Adasum``.
    gradient_predivide_factor : float
        For Average: divide by it before the sum, and by the rest after it.
    process_set : ProcessSet
        The ranks that take part.
    scale_local_gradients : bool
        Gradients of what was given to ``register_local_source`` are divided by the number of ranks.
    device_dense, device_sparse, num_groups, groups
        Horovod's.
    """
    return PartialDistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
