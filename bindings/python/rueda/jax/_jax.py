"""Is there a JAX that rueda can use; an ImportError that says what to do where there is none.

Imported before all else of `rueda.jax`, whose modules would fail at some name that is missing.
"""

OLDEST = (0, 10)

try:
    import jax
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib"):
        raise
    raise ModuleNotFoundError(
        "rueda.jax needs JAX, which this Python has not: pip install jax", name=error.name
    ) from None
except RuntimeError as error:  # what JAX says of a jaxlib that is older or newer than it can use
    raise ImportError(f"rueda.jax: this JAX and its jaxlib do not fit: pip install --upgrade jax ({error})") from error

if tuple(map(int, jax.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"rueda.jax needs JAX {OLDEST[0]}.{OLDEST[1]} or newer, this one is {jax.__version__}: "
        "pip install --upgrade jax"
    )
