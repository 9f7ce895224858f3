"""Elastic membership for TensorFlow: `rueda.elastic` with states of variables and of models of Keras.

>>> state = hvd.elastic.TensorFlowState(variables=[w, b], step=0)
>>> @hvd.elastic.run
... def train(state): ...
"""

import tensorflow as tf

from rueda._numpy import np
from rueda.elastic._arrays import VariablesState, run_fn
from rueda.tensorflow import _library
from rueda.tensorflow._errors import wrong_argument

__all__ = ["TensorFlowState", "run"]


class TensorFlowState(VariablesState):
    """Variables, and plain objects given as keywords, which become attributes.

    Parameters
    ----------
    variables : iterable of tf.Variable or keras.Variable
        As many, in the same order, of the same shapes on all ranks: of the model and of the optimizer.
    session
        Of TensorFlow 1: none is served.
    **kwargs
        Plain objects, as ``step=0``.

    Raises
    ------
    ValueError
        There are no variables: TensorFlow 2 knows no global ones.
    RuntimeError
        A session was given.
    """

    def __init__(self, variables=None, session=None, **kwargs):
        if session is not None:
            raise RuntimeError("TensorFlowState: session= is of TensorFlow 1, which rueda does not serve; leave it out")
        self.variables = list(variables or ())
        if not self.variables:
            raise wrong_argument("TensorFlowState: TensorFlow 2 has no global variables; pass variables=, which are built")
        super().__init__(**kwargs)

    def _shared(self):
        return self.variables

    def _read(self, variables):
        return [np.array(tf.convert_to_tensor(each).numpy(), order="C") for each in variables]

    def _write(self, variables, values):
        for variable, value in zip(variables, values):
            variable.assign(value)


def run(func):
    """Decorates a training function whose first argument is a state; it then survives changes of ranks.

    In a job that is not elastic the function runs once, and errors go up. A ``tf.function`` that divides by
    the number of ranks or knows this rank as numbers of Python has to be made in the training function.
    """
    return run_fn(func, _library.text_of_loss)


def __getattr__(name):
    if name != "TensorFlowKerasState":
        raise AttributeError(f"module 'rueda.tensorflow.elastic' has no attribute {name!r}")
    # Keras comes with it, which programs that do without need not load.
    from rueda.tensorflow._keras_state import TensorFlowKerasState

    globals()["TensorFlowKerasState"] = TensorFlowKerasState
    return TensorFlowKerasState
