"""Is there a Keras that rueda can use; an ImportError that says what to do where there is none.

Imported before all else of `rueda.keras`, whose modules would fail at some name that is missing.
"""

OLDEST = 3
SERVED = ("jax", "tensorflow", "torch")

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ModuleNotFoundError(
        "rueda.keras needs Keras, which this Python has not: pip install keras", name="keras"
    ) from None

if int(keras.__version__.split(".")[0]) < OLDEST:
    raise ImportError(
        f"rueda.keras needs Keras {OLDEST} or newer, this one is {keras.__version__}: "
        "pip install --upgrade keras"
    )
if keras.backend.backend() not in SERVED:
    raise ImportError(
        f"rueda.keras works on Keras's backends {', '.join(SERVED)}, and this one is "
        f"{keras.backend.backend()}: set KERAS_BACKEND before keras is imported"
    )
