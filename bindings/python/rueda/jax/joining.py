"""The end of a rank's data, before that of the others."""

from rueda import _waiting
from rueda._jax_programs import wait_for_programs
from rueda.common.process_sets import global_process_set
from rueda.jax._internals import core
from rueda.jax._library import jax_errors


def join(device=-1, process_set=global_process_set):
    """Says that this rank has no more data; returns the rank that joined last, when every rank of the set has said so.

    What this thread has started ends first, as a rank that has joined starts nothing. Then it takes part in what the
    others do, jitted or not, with what changes nothing, as in `rueda.join`. Rows of it there are none, so allgather and alltoall
    are an error inside of a program, whose shapes are fixed; outside they give those of the others.

    Parameters
    ----------
    device : int
        Horovod's.
    process_set : ProcessSet
        The ranks that join.

    Raises
    ------
    ValueError
        Inside of ``jit``, ``grad`` and the like.
    JaxRuntimeError
        A rank was lost meanwhile.
    """
    if not core.trace_state_clean():
        raise ValueError(
            "join: a program does the same each time that it runs, and a rank joins once, when its data has ended: call it outside of "
            "jit, grad and vmap, behind the loop over the data"
        )
    wait_for_programs()
    with jax_errors():
        return _waiting.join(device, process_set)
