"""Elastic membership under Horovod's name: see `rueda.elastic`."""

from rueda.elastic import *  # noqa: F401,F403
from rueda.elastic import __all__  # noqa: F401
