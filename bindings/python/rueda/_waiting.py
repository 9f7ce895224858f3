"""Waiting: for a handle, for all ranks (barrier), for the last rank that has data (join)."""

import functools

from rueda import _ffi, _ranges, _replay
from rueda._operation import Operation
from rueda._runtime import runtime
from rueda.common.process_sets import global_process_set, id_for_operation


def poll(handle):
    """Whether the operation behind a handle has ended. Never blocks."""
    return runtime.poll(handle)


def synchronize(handle, timeout=None):
    """Waits for an operation; returns its result, or raises how it failed.

    Parameters
    ----------
    handle : int
        From an ``*_async`` function. None is returned, as by Horovod, for one that has been synchronised
        before, and for a number that is none.
    timeout : float, optional
        Seconds after which to raise `DeadlineExceeded`. The operation goes on; synchronise again.
    """
    if _ranges.is_on():
        with _ranges.around("rueda:synchronize", ()):
            return runtime.synchronize(handle, timeout)
    return runtime.synchronize(handle, timeout)


def wait_any(handles, timeout=None):
    """Waits until one of several operations has ended, well or not; returns its handle.

    `synchronize` it then: that gives the result or raises how it failed. Each handle is given once; those
    that have been synchronised, and None, are passed over.

    Parameters
    ----------
    handles : sequence of int
        From ``*_async`` functions, of any kinds and process sets.
    timeout : float, optional
        Seconds after which to raise `DeadlineExceeded`. The operations go on.

    Returns
    -------
    int or None
        None where no handle is left.
    """
    return runtime.wait_any(list(handles), timeout)


def barrier(process_set=global_process_set):
    """Returns once every rank of the set has called it."""
    runtime.require_running()
    operation = Operation(_ffi.BARRIER, process_set=id_for_operation(process_set))
    run = functools.partial(runtime.complete, "barrier", None, [operation], None, lambda requests: None)
    if _replay.entered:
        run = functools.partial(_replay.once, "barrier", run)
    if _ranges.is_on():
        with _ranges.around("rueda:barrier", ()):
            run()
    else:
        run()


def join(device=-1, process_set=global_process_set):
    """Says that this rank has no more data; returns when every rank of the set has said so.

    Until then it takes part in the others' operations with what changes nothing: zeros in sums and
    averages (which are still divided by the number of ranks), the neutral element of Min, Max and
    Product, no rows where rows are gathered. Ranks that make fewer steps thus end cleanly. A
    broadcast from a rank that has joined is an error on the others, and so is a prescaled Product,
    or Min or Max of integers.

    Parameters
    ----------
    device : int
        Horovod's; where its zeros would lie. Tensors are in host memory here.
    process_set : ProcessSet
        The ranks that join; Horovod has the global set only.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.
    """
    runtime.require_running()
    operation = Operation(_ffi.JOIN, process_set=id_for_operation(process_set))
    return runtime.complete("join", None, [operation], None, lambda requests: requests[0].result())
