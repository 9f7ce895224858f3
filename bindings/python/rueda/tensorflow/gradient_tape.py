"""Gradient tapes whose gradients are the same on all ranks."""

import functools

import tensorflow as tf

from rueda._frameworks import check_groups, check_predivide, list_of, replaced
from rueda.common.basics import Average
from rueda.common.process_sets import global_process_set
from rueda.tensorflow._errors import arguments, wrong_argument
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
    if sparse_as_dense or predivide != 1.0:  # slices cannot be scaled
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


class Local:
    """Variables whose gradients stay the rank's own."""

    def __init__(self, process_set, scale):
        self._process_set = process_set
        self._scale = scale
        self._variables = {}  # by id

    def add(self, variable):
        self._variables[id(variable)] = variable
        value = getattr(variable, "value", None)
        if isinstance(value, tf.Variable):  # what a variable of Keras is in TensorFlow
            self._variables[id(value)] = value

    def parted(self, grads, variables):
        """Of these variables, and of the others: two lists with None for the rest."""
        local = [id(each) in self._variables for each in variables]
        return (
            [g if is_local else None for g, is_local in zip(grads, local)],
            [None if is_local else g for g, is_local in zip(grads, local)],
        )

    def reduced(self, grads, variables, reduce):
        """The gradients, the others by ``reduce``."""
        local, others = self.parted(grads, variables)
        if self._scale:
            size = self._process_set.size()
            local = [each if each is None else _divided(each, size) for each in local]
        return [one if one is not None else other for one, other in zip(local, reduce(others))]


class _Tape:
    """What a distributed tape does otherwise than its class; it shares the attributes of ``given``."""

    __slots__ = ("given", "local", "reduce")

    def register_local_source(self, source):
        """Gradients of this variable stay the rank's own."""
        self.local.add(source)

    def get_local_and_global_gradients(self, grads, sources):
        """The gradients of local sources, and of the others: two lists with None for the rest."""
        return self.local.parted(grads, sources)

    def gradient(self, target, sources, output_gradients=None, use_generic_names=False, **options):
        """As tf.GradientTape.gradient, reduced over the ranks; ``use_generic_names`` is Horovod's."""
        grads = self.given.gradient(target, sources, output_gradients, **options)
        reduced = self.local.reduced(tf.nest.flatten(grads), tf.nest.flatten(sources), self.reduce)
        return tf.nest.pack_sequence_as(grads, reduced)

    def jacobian(self, *args, **options):
        """This rank's own: TensorFlow computes it by `gradient`, row by row."""
        return self.given.jacobian(*args, **options)

    def batch_jacobian(self, *args, **options):
        """This rank's own, too."""
        return self.given.batch_jacobian(*args, **options)


@functools.lru_cache(maxsize=None)
def _class_for(base):
    """The class for tapes of class ``base``, under its name."""
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base)(base.__name__, (_Tape, base), names)


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
    with arguments():
        check_predivide(gradient_predivide_factor, op)
        check_groups(groups, num_groups)
        layers = list_of(local_layers)
    if not isinstance(gradtape, tf.GradientTape):
        raise wrong_argument(f"DistributedGradientTape({gradtape!r}): expected a tf.GradientTape")
    if isinstance(gradtape, _Tape):
        raise wrong_argument("DistributedGradientTape of a DistributedGradientTape: its gradients are reduced already")
    tape = _class_for(type(gradtape)).__new__(_class_for(type(gradtape)))
    tape.__dict__ = gradtape.__dict__
    tape.given = gradtape
    tape.local = Local(process_set, scale_local_gradients)
    tape.reduce = functools.partial(
        reduce_gradients,
        op=op,
        compression=compression,
        predivide=gradient_predivide_factor,
        process_set=process_set,
        sparse_as_dense=sparse_as_dense,
    )
    for layer in layers:
        for each in layer.trainable_variables:
            tape.register_local_source(each)
    return tape


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

    It is a tf.GradientTape, of the given one's class, and what one of the two records the other one knows. Its
    ``jacobian`` and ``batch_jacobian`` are the rank's own.

    Parameters
    ----------
    gradtape : tf.GradientTape
    compression : type
        One of `Compression`.
    sparse_as_dense : bool
        IndexedSlices become tensors first, as they do with a ``gradient_predivide_factor``; else they are gathered.
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
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
