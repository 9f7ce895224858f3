"""The timeline, under the name that PyTorch programs import; see `rueda.timeline`."""

from rueda.timeline import *  # noqa: F401,F403
from rueda.timeline import __all__  # noqa: F401
