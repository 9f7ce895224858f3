"""`TensorFlowKerasState`: Horovod's name, within TensorFlow, for the state of a model of Keras."""

from rueda.keras.elastic import KerasState


class TensorFlowKerasState(KerasState):
    """`rueda.keras.elastic.KerasState`; ``backend`` is Horovod's."""

    def __init__(self, model, optimizer=None, backend=None, **kwargs):
        super().__init__(model, optimizer, **kwargs)
