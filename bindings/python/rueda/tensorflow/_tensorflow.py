"""Is there a TensorFlow that rueda can use; an ImportError that says what to do where there is none.

Imported before all else of `rueda.tensorflow`, whose modules would fail at some name that is missing.
"""

OLDEST = (2, 16)

try:
    import tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "rueda.tensorflow needs TensorFlow, which this Python has not: pip install tensorflow-cpu",
        name="tensorflow",
    ) from None

if tuple(map(int, tensorflow.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"rueda.tensorflow needs TensorFlow {OLDEST[0]}.{OLDEST[1]} or newer, this one is "
        f"{tensorflow.__version__}: pip install --upgrade tensorflow-cpu"
    )
