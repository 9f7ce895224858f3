"""What the states of JAX, Keras and TensorFlow have in common.

These frameworks' operations end with exceptions of the framework's own; `run_fn` here makes of a lost rank's what `rueda.elastic` knows.
"""

import contextlib
import functools
import hashlib

from rueda._numpy import np
from rueda._objects import broadcast_object
from rueda.common import basics
from rueda.common.exceptions import HorovodInternalError
from rueda.elastic import _loop
from rueda.elastic._state import ObjectState
from rueda.elastic._transfer import share


def forms(arrays):
    """Dtype and shape of each, as text."""
    return [f"{array.dtype}{list(array.shape)}" for array in arrays]


def layout_of(*what):
    """What `layout` gives: of anything that prints the same on all ranks."""
    return hashlib.sha256(repr(what).encode()).digest()


def share_arrays(arrays, names):
    """Fills arrays of NumPy, in C order, with what rank 0 has in its own; ValueError on all ranks where names differ."""
    share([array.reshape(-1).view(np.uint8) for array in arrays], "state", names)


class FrameworkState(ObjectState):
    """Base: subclasses say how arrays are shared. Plain objects are keywords, which become attributes, as in `ObjectState`."""

    _is_broken = False  # a loss has ended an operation on it: what it has may be neither the old nor the new
    _text_of_loss = None  # as `run_fn` has it

    def __init__(self, **kwargs):
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)
        self._save_uncounted()

    def on_reset(self):
        """As `State.on_reset`; a rank may be lost while callbacks train or talk to others."""
        with _losses(self, self._text_of_loss):
            super().on_reset()

    def restore(self):
        """Everything as it was saved last."""
        super().restore()
        self._is_broken = False

    def sync(self):
        """Everything as it is on rank 0, but what is each rank's own; it counts as saved.

        Raises
        ------
        ValueError
            On all ranks: the arrays of a rank have another structure, other shapes or dtypes.
        """
        if self._is_broken:
            self.restore()
        self._share()

    def _share(self):
        """Gives all ranks what rank 0 has."""
        raise NotImplementedError()

    def _synced(self):
        self._save_uncounted()


class VariablesState(FrameworkState):
    """Of variables, which stay the objects that they are, and plain objects. Subclasses say which and how they are read and written.

    Parameters
    ----------
    **kwargs
        Plain objects, which become attributes, as in `ObjectState`.
    """

    _values = ()

    def _shared(self):
        """The variables that all ranks have alike; as many, in the same order, on all of them."""
        raise NotImplementedError()

    def _own(self):
        """Those that are each rank's own: saved and restored, not synchronized."""
        return []

    def _read(self, variables):
        """Copies of their values, as numpy.ndarray in C order."""
        raise NotImplementedError()

    def _write(self, variables, values):
        """Gives them these values."""
        raise NotImplementedError()

    def save(self):
        """Keeps everything as it is, in this rank's memory."""
        values = self._read([*self._shared(), *self._own()])
        super().save()
        self._values = values

    def restore(self):
        """Everything as it was saved last."""
        self._write([*self._shared(), *self._own()], self._values)
        super().restore()

    def _share(self):
        variables = self._shared()
        values = self._read(variables)
        share_arrays(values, forms(values))
        self._write(variables, values)
        ObjectState.sync(self)  # the plain objects

    def _layout(self):
        """What must be the same on all ranks, for the launcher to compare."""
        return layout_of(forms(self._values[: len(self._shared())]), sorted(self._saved_state))


before_training = []  # functions of the state, called before each call of a training function


@contextlib.contextmanager
def _losses(state, text_of_loss):
    """What ends with a lost rank's exception ends with a HorovodInternalError."""
    try:
        yield
    except HorovodInternalError:
        state._is_broken = True
        raise
    except Exception as error:
        text = None if text_of_loss is None else text_of_loss(error)
        if text is None:
            raise
        state._is_broken = True
        raise HorovodInternalError(text) from error


def run_fn(func, text_of_loss):
    """`rueda.elastic.run` for functions that end with a framework's exceptions.

    ``text_of_loss``: of an exception, its text if it may come from a lost rank, else None.
    """

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        for check in before_training:
            check(state)
        with _losses(state, text_of_loss):
            return func(state, *args, **kwargs)

    training = _loop.run(wrapper)

    @functools.wraps(func)
    def run(state, *args, **kwargs):
        state._text_of_loss = text_of_loss
        return training(state, *args, **kwargs)

    return run
