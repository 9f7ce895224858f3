"""What ranks tell the process that started them while they run: Horovod's ``horovod.ray.ray_logger``.

>>> def train():
...     ray_logger.log({"step": step, "loss": loss})
>>> executor.run(train, callbacks=[print])

Threads: any.
"""

import os
import warnings

import rueda

_queue = None
_has_warned = False


def configure(queue):
    """Where `log` puts what it is given: anything with ``put(info)``; None: nowhere. Executors do this in each rank."""
    global _queue
    _queue = queue


def log(info_dict, chief_only=True):
    """Hands ``info_dict`` to each of the callbacks that the executor's `run` was given, soon.

    Without callbacks nothing happens but a warning, once.

    Parameters
    ----------
    info_dict : dict
        Of what can be pickled.
    chief_only : bool
        Whether only rank 0 is heard.
    """
    global _has_warned
    if chief_only and _rank() != 0:
        return
    if _queue is not None:
        _queue.put(info_dict)
    elif not _has_warned:
        _has_warned = True
        warnings.warn(
            "ray_logger.log: nobody is told; give run() callbacks, which are called with it",
            stacklevel=2,
        )


def _rank():
    """In an elastic job it may have been another before."""
    return rueda.rank() if rueda.is_initialized() else int(os.environ.get("RUEDA_RANK", 0))
