"""Batches as frameworks want them, and the end of the steps that use them; the arrays' memory is used, not copied, where the framework can."""

from rueda._numpy import np
from rueda.data._errors import library


def converter(to):
    """A function of batches, for "numpy", "torch" or "jax"; ValueError for another word, ImportError without the framework."""
    if to == "numpy":
        return lambda batch: batch
    if to == "torch":
        one = library("torch", 'DataLoader(to="torch")', "torch").from_numpy
    elif to == "jax":
        one = library("jax", 'DataLoader(to="jax")', "jax").numpy.asarray
    else:
        raise ValueError(f'to={to!r}: expected "numpy", "torch" or "jax" (for Keras, DataLoader.keras())')
    return lambda batch: _each(batch, one)


def settler(to):
    """A function that returns when the steps have ended that this thread has started: JAX's may be under way behind the last batch."""
    if to != "jax":
        return lambda: None
    from rueda._jax_programs import wait_for_programs

    return wait_for_programs


def _each(batch, convert):
    if isinstance(batch, np.ndarray):
        return convert(batch)
    if isinstance(batch, dict):
        return {key: _each(part, convert) for key, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [_each(part, convert) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch
