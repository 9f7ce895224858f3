"""Elastic membership for Keras: `rueda.elastic` with the state of a model and its optimizer.

>>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
>>> @hvd.elastic.run
... def train(state):
...     model.fit(x, y, epochs=epochs - state.epoch, callbacks=[
...         hvd.elastic.CommitStateCallback(state),
...         hvd.elastic.UpdateBatchStateCallback(state),
...         hvd.elastic.UpdateEpochStateCallback(state),
...     ])
"""

import keras

from rueda._numpy import np
from rueda.common import basics
from rueda.elastic._arrays import VariablesState, run_fn
from rueda.keras import _framework
from rueda.keras._elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(VariablesState):
    """A model, its optimizer, and plain objects given as keywords, which become attributes.

    Weights and the optimizer's variables (its step and learning rate among them) are all ranks'; random
    seeds, as of dropout, are saved and restored but stay each rank's own.

    Parameters
    ----------
    model : keras.Model
        Built.
    optimizer : keras.optimizers.Optimizer, optional
        Without, that of the model, if it is compiled. It is built if it is not.
    **kwargs
        Plain objects: ``epoch=0, batch=0`` for the callbacks.

    Raises
    ------
    ValueError
        The model has no variables yet.
    """

    def __init__(self, model, optimizer=None, **kwargs):
        if not model.built:
            raise ValueError("KerasState: the model has no variables yet; build it first: model.build(input_shape)")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        self._place = None if _framework.is_outside() else (basics.rank(), basics.size())
        super().__init__(**kwargs)

    def _shared(self):
        return [*self.model.weights, *(() if self.optimizer is None else self.optimizer.variables)]

    def _own(self):
        weights = {id(each) for each in self.model.weights}
        return [each for each in self.model.non_trainable_variables if id(each) not in weights]

    def _read(self, variables):
        _framework.settle(self.model)
        return [np.array(keras.ops.convert_to_numpy(each.value), order="C") for each in variables]

    def _write(self, variables, values):
        _framework.drop_steps(self.model)
        for variable, value in zip(variables, values):
            variable.assign(value)

    def reset(self):
        """Other ranks: what was compiled has their number in it."""
        place = basics.rank(), basics.size()
        if place != self._place:
            self._place = place
            self.model.train_function = self.model.test_function = self.model.predict_function = None
            distributed = getattr(self.optimizer, "_rueda", None)  # a plain one, behind a tape that is distributed, has none
            if distributed is not None:
                _framework.steps_made_outside.discard(distributed)


def run(func):
    """Decorates a training function whose first argument is a state; it then survives changes of ranks.

    In a job that is not elastic the function runs once, and errors go up.
    """
    return run_fn(func, _framework.text_of_loss)
