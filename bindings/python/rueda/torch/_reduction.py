"""A reduction of gradients that is under way, and what the script did to them meanwhile."""

import time
import weakref

from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch import _async


class Reduction:
    """Of one gradient, or of several as a group.

    Parameters
    ----------
    parameters : list of torch.nn.Parameter
        Whose ``grad`` travels, from now on.
    handles : list of int
        What has been submitted.
    write : callable
        Called with what the handles gave; puts the results into the parameters' ``grad``.
    watched : bool
        Whether the gradients must stay as they are until the end.
    """

    def __init__(self, parameters, handles, write, watched=True):
        self.parameters = parameters
        self.handles = handles
        self._write = write
        self._results = None
        self._seen = [
            (p, weakref.ref(p.grad), _version(p.grad)) for p in (parameters if watched else ())
        ]

    def is_wanted(self):
        """Whether any gradient is still its parameter's; else the script has thrown it away."""
        return not self._seen or any(
            p.grad is not None and seen() is p.grad for p, seen, _ in self._seen
        )

    def touched(self):
        """Parameters whose gradient the script has changed or replaced since it was submitted."""
        return [
            p
            for p, seen, version in self._seen
            if p.grad is None or seen() is not p.grad or _version(p.grad) != version
        ]

    def wait(self):
        """Until the results are there; raises how it failed. Gradients stay as they are."""
        if self._results is None:
            self._results = [_async.synchronize(handle) for handle in self.handles]

    def write(self):
        """Puts the results into the parameters' ``grad``. After `wait`."""
        self._write(*self._results)

    def let_go(self):
        """Nobody needs it any more: gradients that the script drops must not live on here."""


class ChainReduction(Reduction):
    """One that takes several collectives (`_compress_chain.Chain`)."""

    def __init__(self, parameters, chain, write):
        self._chain = chain
        super().__init__(parameters, None, write)

    @property
    def handles(self):
        return self._chain.handles

    @handles.setter
    def handles(self, value):
        pass

    def wait(self):
        if self._results is None:
            self._results = [self._chain.wait()]


def _version(grad):
    """Counts changes in place. Parts of one buffer share its count, which tells nothing."""
    return 0 if grad._is_view() else grad._version


def give_up(reductions, seconds):
    """Abandons reductions, after a chance to end: a next attempt needs their names."""
    end = time.monotonic() + seconds
    for handle in [handle for reduction in reductions for handle in reduction.handles]:
        try:
            _async.synchronize(handle, max(0.0, end - time.monotonic()))
        except (HorovodInternalError, DeadlineExceeded):
            runtime.abandon(handle)
