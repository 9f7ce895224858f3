"""What `rueda.stats` says, where people look at their experiments: TensorBoard, Weights & Biases, MLflow, OpenTelemetry.

``logger = rueda.loggers.TensorBoard("runs/one")``, then ``logger.step()`` in each step, on all ranks: rank 0 writes ten
scalars under ``rueda/`` every so many steps, the others do nothing. `keras_callback` and `lightning_callback` make a
callback of a logger. `OpenTelemetry` writes spans of the job, of init, of some steps, and of a failure.

None of these libraries is needed to import this; each raises one ImportError that says what to install.
docs/monitoring.md has examples.
"""

from rueda.loggers._callbacks import keras_callback, lightning_callback
from rueda.loggers._scalars import MLflow, ScalarLogger, TensorBoard, WeightsAndBiases, scalars
from rueda.loggers._spans import OpenTelemetry

__all__ = [
    "MLflow",
    "OpenTelemetry",
    "ScalarLogger",
    "TensorBoard",
    "WeightsAndBiases",
    "keras_callback",
    "lightning_callback",
    "scalars",
]
