"""Elastic membership for JAX: `rueda.elastic` with a state of pytrees.

>>> state = hvd.elastic.JaxState(params=params, opt_state=optimizer.init(params), step=0)
>>> @hvd.elastic.run
... def train(state):
...     while state.step < steps:
...         state.params, state.opt_state = step(state.params, state.opt_state)
...         state.step += 1
...         state.commit()

Programs are traced anew when the ranks have changed: their number is in some shapes.
"""

import dataclasses

import jax
import numpy as np

from rueda.elastic._arrays import FrameworkState, forms, layout_of, run_fn, share_arrays
from rueda.jax import _library
from rueda.jax.functions import broadcast_object, is_key

__all__ = ["JaxState", "run"]


@dataclasses.dataclass(eq=False)
class _Kept:
    """An array in host memory, and what it is elsewhere."""

    value: np.ndarray
    is_jax: bool
    sharding: object = None  # none: the default device
    key: object = None  # of random keys: which kind

    def __getstate__(self):
        return {**vars(self), "sharding": None}  # devices are of this process

    @classmethod
    def of(cls, leaf):
        """A copy; what is no array stays as it is."""
        if isinstance(leaf, np.ndarray):
            return cls(leaf.copy(), False)
        if not isinstance(leaf, jax.Array):
            return leaf
        if not is_key(leaf):
            return cls(np.array(leaf, order="C"), True, leaf.sharding)
        data = jax.random.key_data(leaf)
        return cls(np.array(data, order="C"), True, data.sharding, jax.random.key_impl(leaf))

    @staticmethod
    def back(leaf):
        """The array again, of whatever `of` has made."""
        if not isinstance(leaf, _Kept):
            return leaf
        if not leaf.is_jax:
            return leaf.value.copy()
        # Not the memory itself: it would be the array's where JAX can do without a copy, and might be donated.
        array = jax.device_put(leaf.value.copy(), leaf.sharding)
        return array if leaf.key is None else jax.random.wrap_key_data(array, impl=leaf.key)


def _forms_in(trees):
    """Of each leaf, where it is, and its dtype and shape; a structure's own text may have addresses of functions in it."""
    leaves = jax.tree_util.tree_leaves_with_path(trees)
    return [
        jax.tree_util.keystr(path) + "".join(forms([leaf.value] if isinstance(leaf, _Kept) else []))
        for path, leaf in leaves
    ]


class JaxState(FrameworkState):
    """Pytrees of arrays (parameters, optimizer states, random keys) and plain objects; each becomes an attribute.

    What is saved is in host memory, so that steps may donate their arrays.

    Parameters
    ----------
    **trees
        What has an array in it when the state is made keeps its structure, shapes and dtypes, which are the same
        on all ranks. All else, and leaves that are no arrays, is plain: it may become anything, and travels pickled.
    """

    def __init__(self, **trees):
        has_arrays = (
            name for name, tree in trees.items() if any(isinstance(each, (jax.Array, np.ndarray)) for each in jax.tree.leaves(tree))
        )
        self._trees = sorted(has_arrays)
        super().__init__(**trees)

    def save(self):
        """Keeps everything as it is, in this rank's memory."""
        self._saved_state = self._copy()

    def _share(self):
        saved = self._copy()
        trees = {name: saved.pop(name) for name in self._trees}
        leaves, form = jax.tree.flatten(trees)
        share_arrays([each.value for each in leaves if isinstance(each, _Kept)], _forms_in(trees))
        others = broadcast_object(([None if isinstance(each, _Kept) else each for each in leaves], saved))
        leaves = [mine if isinstance(mine, _Kept) else other for mine, other in zip(leaves, others[0])]
        self._set_attrs({**others[1], **jax.tree.unflatten(form, leaves)})

    def _layout(self):
        """What must be the same on all ranks, for the launcher to compare."""
        trees = {name: self._saved_state[name] for name in self._trees}
        return layout_of(_forms_in(trees), sorted(self._saved_state))

    def _copy(self):
        return jax.tree.map(_Kept.of, {name: getattr(self, name) for name in self._saved_state})

    def _set_attrs(self, values=None):
        for name, tree in (self._saved_state if values is None else values).items():
            setattr(self, name, jax.tree.map(_Kept.back, tree))


def run(func):
    """Decorates a training function whose first argument is a state; it then survives changes of ranks.

    In a job that is not elastic the function runs once, and errors go up. Steps are computed behind the
    script's back: a loss shows when it looks at a result, and at the latest in ``state.commit()``.
    """
    return run_fn(func, _library.text_of_loss)
