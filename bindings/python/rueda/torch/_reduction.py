"""One reduction of gradients that is under way, and what the script did to them meanwhile."""

import time
import weakref

from rueda._runtime import runtime
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError
from rueda.torch import _async


class Reduction:
    """Of one gradient, or of several as a group.

    Parameters
    ----------
    gradients : list of Gradient
        Whose parameters' ``grad`` travels, from now on.
    handles : list of int
        What has been submitted.
    write : callable
        Called with what the handles gave; puts the results into the parameters' ``grad``.
    watched : bool
        Whether the gradients must stay as they are until the end.
    """

    def __init__(self, gradients, handles, write, watched=True):
        self.gradients = gradients
        self.handles = handles
        self._write = write
        self._results = None
        self._seen = []
        for gradient in gradients if watched else ():
            grad = gradient.parameter.grad
            self._seen.append((gradient, weakref.ref(grad), version(grad)))

    def is_wanted(self):
        """Whether any gradient is still its parameter's; else the script has thrown it away."""
        if not self._seen:
            return True
        return any(seen() is not None and seen() is g.parameter.grad for g, seen, _ in self._seen)

    def wait(self):
        """Until the results are there; raises how it failed. Gradients stay as they are."""
        if self._results is None:
            self._results = [_async.synchronize(handle) for handle in self.handles]

    def end(self):
        """Waits, and puts the results into the parameters' ``grad``.

        Does not if the script has changed or replaced gradients meanwhile: returns these.
        """
        self.wait()
        touched = [gradient for gradient, *seen in self._seen if _is_touched(gradient, *seen)]
        if not touched:
            self._write(*self._results)
        return touched

    def let_go(self):
        """Its gradients are free of it. What the script drops must not live on here."""
        for gradient in self.gradients:
            gradient.reduction = None

    def give_up(self, end):
        """After a chance to end, until the time ``end``: a next attempt needs its names."""
        for handle in self.handles:
            try:
                _async.synchronize(handle, max(0.0, end - time.monotonic()))
            except (HorovodInternalError, DeadlineExceeded):
                runtime.abandon(handle)


class ChainReduction(Reduction):
    """One that takes several collectives (`_compress_chain.Chain`)."""

    def __init__(self, gradients, chain, write):
        self._chain = chain
        super().__init__(gradients, None, write)

    @property
    def handles(self):
        return self._chain.handles

    @handles.setter
    def handles(self, value):
        pass

    def wait(self):
        if self._results is None:
            self._results = [self._chain.wait()]


def version(grad):
    """Counts changes in place. Parts of one buffer share its count, which tells nothing."""
    return 0 if grad._is_view() else grad._version


def _is_touched(gradient, seen, before):
    grad = gradient.parameter.grad
    return grad is None or seen() is not grad or version(grad) != before


def give_up(reductions, seconds):
    """Abandons them, after a chance to end in that time."""
    end = time.monotonic() + seconds
    for reduction in reductions:
        reduction.give_up(end)
