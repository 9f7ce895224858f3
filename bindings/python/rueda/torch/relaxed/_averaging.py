"""Means of tensors over ranks that are under way, out of place: after an error everything is as it was."""

import sys
import time

from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch import _async
from rueda.torch._compress_reducer import Reducer
from rueda.torch.compression import Compression


class Averaging:
    """Starts when it is made.

    Parameters
    ----------
    pairs : list of (str, torch.Tensor)
        The names are the same on all ranks. The tensors stay as they are until the end.
    process_set : ProcessSet
    compression
        One of `Compression`, or a `Reducer`.
    """

    def __init__(self, pairs, process_set, compression=Compression.none):
        self._parts = []
        self._results = self._error = None
        if not process_set.included() or process_set.size() == 1:
            self._results = [tensor for _, tensor in pairs]
            return
        try:
            for name, tensor in pairs:
                self._parts.append(_start(name, tensor, process_set, compression))
        except BaseException:
            self.give_up()
            raise

    def wait(self):
        """The means, in the order of the pairs; raises how it failed, each time."""
        if self._error is not None:
            raise self._error
        if self._results is None:
            try:
                self._results = [part.wait() for part in self._parts]
            except BaseException as error:
                interrupted = RuntimeError("the wait for these means was interrupted, and they were given up")
                self._error = error if isinstance(error, Exception) else interrupted
                self.give_up()
                raise
            self._parts = []
        return self._results

    def give_up(self, seconds=0.0):
        """Nobody will wait; after a chance to end in that time, since the next one needs its names."""
        parts, self._parts = self._parts, []
        end = time.monotonic() + seconds
        for part in parts:
            for handle in part.handles:
                try:
                    _async.synchronize(handle, max(0.0, end - time.monotonic()))
                except (HorovodInternalError, DeadlineExceeded):
                    runtime.abandon(handle)

    def __del__(self, is_finalizing=sys.is_finalizing):
        if not is_finalizing():
            for part in self._parts:
                for handle in part.handles:
                    runtime.abandon(handle)


def _start(name, tensor, process_set, compression):
    tensor = tensor.detach()
    if isinstance(compression, Reducer):
        return compression.start(tensor, name, process_set=process_set)
    wire, context = compression.compress(tensor)
    handle = _async.allreduce_async(wire, None, name, basics.Average, process_set=process_set)
    return _Part(handle, lambda result: compression.decompress(result, context))


class _Part:
    def __init__(self, handle, finish):
        self.handles, self._finish = [handle], finish

    def wait(self):
        return self._finish(_async.synchronize(self.handles[0]))


class Ended:
    """One whose means are known, of a checkpoint."""

    def __init__(self, means):
        self._means = means

    def wait(self):
        return self._means

    def give_up(self, seconds=0.0):
        pass
