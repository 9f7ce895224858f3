"""librueda_tf.so: its ops in TensorFlow, and the context that they use."""

import ctypes

import tensorflow as tf

from rueda._plugins import Plugin, plugin_path
from rueda._runtime import runtime

# What RuedaPlace gives, as bindings/tensorflow/place.cc counts it.
RANK, LOCAL_RANK, SIZE, LOCAL_SIZE, IS_INCLUDED = range(5)


def _load():
    """TensorFlow first: it learns of ops when the library is opened, which happens once."""
    path = plugin_path("tf")
    try:
        ops = tf.load_op_library(path)
    except tf.errors.NotFoundError as error:
        raise ImportError(f"cannot load librueda_tf from {path}: {error.message}") from error
    plugin = Plugin("tf")
    plugin.library.rueda_tf_problem.restype = ctypes.c_char_p
    problem = plugin.library.rueda_tf_problem()
    if problem:
        raise ImportError(
            f"rueda.tensorflow cannot use TensorFlow {tf.__version__}, which has no {problem.decode()}; "
            "docs/tensorflow.md lists versions that it is tested with"
        )
    return ops, plugin


ops, _plugin = _load()
attach = _plugin.attach
runtime.on_entering.append(attach)


def text_of_loss(error):
    """The text of an error that may come from a lost rank, else None."""
    return error.message if isinstance(error, (tf.errors.AbortedError, tf.errors.CancelledError)) else None


def place_op(what, process_set_id=0):
    """An int32 scalar that is looked up when the program runs."""
    attach()
    return ops.rueda_place(what=what, process_set=process_set_id)
