"""Small helpers with the names of ``horovod.tensorflow.util``, which scripts import."""

import tensorflow as tf

from rueda.common.util import _cache  # noqa: F401


def _executing_eagerly():
    """Whether operations run when they are called: outside of graphs."""
    return tf.executing_eagerly()


def _make_subgraph(f):
    """The function as a graph."""
    return tf.function(f)


def vars_to_refs(vars):
    """Variables, also in lists and tuples, as references that can be keys of a dict."""
    if isinstance(vars, (list, tuple)):
        return tuple(map(vars_to_refs, vars))
    return vars.ref()


def refs_to_vars(refs):
    """The variables of `vars_to_refs`, in lists."""
    if isinstance(refs, (list, tuple)):
        return list(map(refs_to_vars, refs))
    return refs.deref()
