"""Horovod's ``horovod.common.util``, by rueda."""

from rueda.common.util import *  # noqa: F401,F403
from rueda.common.util import _cache  # noqa: F401
