"""Optimizers that average gradients over the ranks before they use them.

A class is made for each class of optimizer, which differs from it in a few methods. It has the name of
what it comes from, so that a model which is saved knows nothing of rueda. What is made of its configuration
in this process is distributed too: `_clones`.
"""

import collections
import dataclasses
import functools
import sys

import keras

from rueda._frameworks import check_groups, check_predivide, list_of, replaced
from rueda._numbers import whole_number
from rueda.common import basics
from rueda.common.process_sets import (
    ProcessSet,
    get_process_set_ids_and_ranks,
    global_process_set,
    registered,
)
from rueda.keras import _clones, _framework
from rueda.keras._framework import Compression


@dataclasses.dataclass(eq=False)
class _Reduction:
    """How gradients are reduced."""

    op: int
    compression: object
    prescale: float
    postscale: float
    process_set: ProcessSet
    local: list  # variables whose gradients stay this rank's; a pickled one has their paths
    scale_local: bool
    as_dense: bool  # IndexedSlices of TensorFlow become tensors first

    def __deepcopy__(self, memo):
        return self  # it is never changed

    def __reduce__(self):
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        fields["local"] = [_path(each) for each in self.local]
        ranks = None if self.process_set is global_process_set else self.process_set.ranks
        return _unpickled, (type(self), {**fields, "process_set": ranks})

    def _places_of_local(self, variables):
        """Of the variables that stay local; those of a cloned model are known by their paths."""
        if not self.local:
            return []
        ids = {id(each) for each in self.local}
        found = [i for i, each in enumerate(variables) if id(each) in ids]
        if not found:
            paths = set(map(_path, self.local))
            found = [i for i, each in enumerate(variables) if _path(each) in paths]
        return found

    def __call__(self, grads, variables=None):
        """The reduced gradients, None where there are none."""
        if _framework.is_outside():
            _framework.steps_made_outside.add(self)
            return list(grads)  # of a rank that joins a running job: what it computes before is overwritten
        if not self.process_set.included():
            return list(grads)  # a rank that is not in the process set keeps its own
        mine = self._places_of_local(variables)
        sent = [i for i, g in enumerate(grads) if g is not None and i not in mine]
        reduced = list(grads)
        if sent:
            results = _framework.reduce_group(
                [_framework.dense(grads[i]) if self.as_dense else grads[i] for i in sent],
                op=self.op,
                compression=self.compression,
                prescale_factor=self.prescale,
                postscale_factor=self.postscale,
                process_set=self.process_set,
            )
            reduced = replaced(reduced, sent, results)
        if self.scale_local:
            for i in mine:
                if grads[i] is not None:
                    reduced[i] = _framework.dense(grads[i]) / self.process_set.size()
        return reduced


def _path(variable):
    return variable if isinstance(variable, str) else variable.path


def _unpickled(cls, fields):
    ranks = fields["process_set"]
    if ranks is None:
        return cls(**{**fields, "process_set": global_process_set})
    for set_id, others in get_process_set_ids_and_ranks().items():
        if others == ranks and set_id != 0:
            return cls(**{**fields, "process_set": registered(set_id)})
    raise ValueError(f"a pickled DistributedOptimizer is of the process set {ranks}, which this job has not: add it first")


def _refuse_inside(caller):
    """ValueError where a LossScaleOptimizer calls, which has looked for infinities on this rank alone."""
    if caller.f_code.co_name in ("_stateful_handle_finite_grads", "_stateless_handle_finite_grads"):
        raise ValueError(
            "a DistributedOptimizer is inside of a LossScaleOptimizer, where each rank looks at its own "
            "gradients before they are averaged: pass "
            "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), also where compile() "
            "would do it for mixed_float16"
        )


class _Distributed:
    """What a distributed optimizer does otherwise than its class."""

    def register_local_var(self, var):
        """Gradients of this variable stay the rank's own."""
        self._rueda = dataclasses.replace(self._rueda, local=[*self._rueda.local, var])

    def get_config(self):
        config = super().get_config()
        return {**config, "name": _clones.Name(config["name"], self._rueda)}

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        """One that is distributed as the one whose configuration it is: of this process, not from a file."""
        reduction = _clones.reduction_of(config)
        if reduction is None:
            raise ValueError(
                "the class of a distributed optimizer makes others of what get_config() has returned in this process; "
                f"of what was saved, make a keras.optimizers.{cls.__name__} and pass it to DistributedOptimizer"
            )
        new = super().from_config({**config, "name": str(config["name"])}, *args, **kwargs)
        new._rueda = reduction
        return new

    def __reduce__(self):  # copies and pickles are new ones, as those of Keras's optimizers
        return _clones.remade, (_plain(type(self)), self.get_config())

    def apply(self, grads, trainable_variables=None):
        _refuse_inside(sys._getframe(1))
        return super().apply(self._reduced(grads, trainable_variables), trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        _refuse_inside(sys._getframe(1))
        if isinstance(self, keras.optimizers.LossScaleOptimizer):  # the others' goes by apply
            grads = self._reduced(grads, None)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _reduced(self, grads, variables):
        if self.gradient_accumulation_steps:
            return grads
        variables = self._trainable_variables if variables is None else list(variables)
        return self._rueda(list(grads), variables)

    def _clip_gradients(self, grads):
        """The first that Keras does with gradients that it has accumulated."""
        if self.gradient_accumulation_steps:
            calls = getattr(self, "_iterations", self.iterations)  # Keras before 3.5 counts them in `iterations`
            is_last = (calls + 1) % self.gradient_accumulation_steps == 0
            grads = _framework.only_when(is_last, self._rueda, grads)
        return super()._clip_gradients(grads)


def _plain(made):
    """The class that a distributed one was made from."""
    return made.__bases__[1]


@functools.lru_cache(maxsize=None)
def _distributed(base):
    """The class for optimizers of class ``base``, under its name."""
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(base)(base.__name__, (_Distributed, base), names)
    registered = keras.saving.get_registered_name(base)
    if ">" in registered:  # a user's own, which Keras finds by this name
        keras.saving.register_keras_serializable(*registered.split(">", 1))(made)
        keras.saving.get_custom_objects()[registered] = base
    return made


def _leave_xla_out():
    """On TensorFlow, where XLA cannot compile collectives, of a model with a distributed optimizer.

    ``jit_compile="auto"`` chooses XLA nowhere, with GPUs neither, and True is an error of `compile`.
    """
    resolve, setting = keras.Model._resolve_auto_jit_compile, keras.Model.jit_compile

    def is_distributed(model):
        return isinstance(getattr(model, "optimizer", None), _Distributed)

    @functools.wraps(resolve)
    def resolved(model):
        return not is_distributed(model) and resolve(model)

    def choose(model, value):
        if value and is_distributed(model):
            raise NotImplementedError(
                "compile(jit_compile=True) of a model with a DistributedOptimizer: XLA cannot compile collectives; leave out "
                "jit_compile=True, \"auto\" does without XLA here"
            )
        setting.fset(model, value)

    keras.Model._resolve_auto_jit_compile = resolved
    keras.Model.jit_compile = property(setting.fget, choose, doc=setting.__doc__)


if keras.backend.backend() == "tensorflow":
    _leave_xla_out()
_clones.keep_distributed(lambda cls: cls if issubclass(cls, _Distributed) else _distributed(cls))


def _wrap(optimizer, name, steps, reduction):
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"DistributedOptimizer({optimizer!r}): expected an optimizer of Keras 3")
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "DistributedOptimizer of a DistributedOptimizer: its gradients are reduced already"
        )
    config = optimizer.get_config()
    config["name"] = _clones.Name(config["name"] if name is None else name, reduction)
    if steps > 1:
        if config.get("gradient_accumulation_steps"):
            raise ValueError(
                f"backward_passes_per_step={steps} and the optimizer's own gradient_accumulation_steps="
                f"{config['gradient_accumulation_steps']}: leave one of them out"
            )
        config["gradient_accumulation_steps"] = steps
    new = _distributed(type(optimizer)).from_config(config)
    if optimizer.built:
        new.build(optimizer._trainable_variables)
        _copy(optimizer.variables, new.variables)
    return new


def _copy(variables, others):
    """Their values to those of the same names, of which there may be more: accumulators."""
    given = collections.defaultdict(collections.deque)
    for each in variables:
        given[each.name, tuple(each.shape)].append(each)
    for each in others:
        if same := given[each.name, tuple(each.shape)]:
            each.assign(same.popleft().numpy())


def PartialDistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=basics.Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
):
    """`DistributedOptimizer` that leaves the gradients of some layers to each rank.

    Parameters
    ----------
    local_layers : keras.layers.Layer or list of them
        Built layers whose gradients are not reduced.
    scale_local_gradients : bool
        Divide these by the number of ranks, as the others are.

    The other parameters are those of `DistributedOptimizer`.
    """
    if op not in (basics.Average, basics.Sum):
        raise ValueError("DistributedOptimizer: op is Average or Sum")
    passes = whole_number("backward_passes_per_step", backward_passes_per_step, 1)
    check_predivide(gradient_predivide_factor, op)
    check_groups(groups, num_groups)
    local_layers = list_of(local_layers)
    if any(not layer.built for layer in local_layers):
        raise ValueError("local_layers: a layer has no variables yet; build the model first")
    if local_layers and passes > 1:
        raise ValueError("local_layers and backward_passes_per_step do not go together")
    sum_of_passes = 1.0 if average_aggregated_gradients else float(passes)
    reduction = _Reduction(
        op=op,
        compression=compression,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor * sum_of_passes,
        process_set=process_set,
        local=[v for layer in local_layers for v in layer.trainable_variables],
        scale_local=scale_local_gradients,
        as_dense=sparse_as_dense or gradient_predivide_factor * sum_of_passes != 1.0,
    )
    return _wrap(optimizer, name, passes, reduction)


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=basics.Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """An optimizer like this one that reduces gradients over all ranks, as one group, before it uses them.

    The optimizer that is given stays as it is; what it has learnt so far is copied.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        A LossScaleOptimizer too: wrap that one, not the optimizer inside of it.
    name : str, optional
        Of the new optimizer; without, the given one's.
    compression : type
        One of `Compression`.
    gradient_predivide_factor : float
        For Average: divide by it before the sum, and by the rest after it.
    op : int
        ``Average`` or ``Sum``.
    backward_passes_per_step : int
        Gradients of so many batches are added up on this rank first, by Keras's own
        ``gradient_accumulation_steps``; the model is updated with each last of them.
    average_aggregated_gradients : bool
        Divide that sum by their number.
    process_set : ProcessSet
        The ranks that take part.
    sparse_as_dense : bool
        On TensorFlow: gradients of embeddings become tensors first; else their rows are gathered.
    scale_local_gradients : bool
        Gradients of what is given to the result's ``register_local_var`` are divided by the number of ranks.
    device_dense, device_sparse, num_groups, groups
        Horovod's; all gradients of a step are one group wherever they lie.

    Returns
    -------
    keras.optimizers.Optimizer
        Of a class with the name of the given one's: a model that is saved with it loads without rueda.

    Raises
    ------
    ValueError
        An argument is wrong.
    """
    return PartialDistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
