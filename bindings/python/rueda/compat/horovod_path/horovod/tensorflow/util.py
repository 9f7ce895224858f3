"""Horovod's ``horovod.tensorflow.util``, by rueda."""

from rueda.tensorflow.util import *  # noqa: F401,F403
from rueda.tensorflow.util import _cache, _executing_eagerly, _make_subgraph  # noqa: F401
