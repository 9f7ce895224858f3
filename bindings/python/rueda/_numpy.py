"""NumPy, imported at its first use.

It is most of what ``import rueda`` would cost (120 of 150 ms of a processor), and a job of many ranks
on few cores pays that once a rank: scripts that only ask for their rank, or use PyTorch tensors,
need none of it.

>>> from rueda._numpy import np
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:

    class _NumPy:
        """Has what the module has; what was asked for once costs as much as the module's own."""

        def __getattr__(self, name):
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _NumPy()

__all__ = ["np"]
