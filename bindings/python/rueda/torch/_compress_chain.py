"""A reduction that takes several collectives, one after another, without a thread of its own.

The algorithm is a generator that yields the handle of what it waits for and is sent its result:

    received = yield alltoall_async(blocks)
    ...
    gathered = yield allgather_async(sums)
    return decoded(gathered)

Each collective is named, so ranks may go on with their chains in different orders. So a rank that
waits for one chain must not leave the others where they are: a peer may wait for one of those first.
There is no waiting for whichever ends first, so it looks after them now and then.
"""

from rueda.common.exceptions import DeadlineExceeded
from rueda.torch import _async

# How long a chain waits before it looks after the others again, in seconds; doubled each time.
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.05


class Chain:
    """Drives one such generator. ``company``: name -> chains that go on while one of them waits.

    A weak dictionary: a chain that nobody wants any more is not driven any further.
    """

    def __init__(self, steps, company, name):
        self._steps = steps
        self._company = company
        self._name = name
        self._handle = None
        self._result = None
        self._error = None
        self._ended = False
        self._go_on(None)
        if not self._ended:
            company[name] = self
            move_along(company)

    @property
    def handles(self):
        """What is under way, for who gives the chain up."""
        return [] if self._ended else [self._handle]

    def wait(self):
        """Waits for the whole chain; returns what the generator returned, or raises its error."""
        pause = _FIRST_LOOK
        while not self._ended:
            try:
                self._take(pause if len(self._company) > 1 else None)
            except DeadlineExceeded:
                if self._ended:
                    raise
                pause = min(2 * pause, _LAST_LOOK)
                for chain in list(self._company.values()):
                    chain.try_to_move()
            else:
                pause = _FIRST_LOOK
                move_along(self._company)
        if self._error is not None:
            raise self._error
        return self._result

    __call__ = wait

    def try_to_move(self):
        """Goes on if the collective it waits for has ended. An error is kept for `wait`."""
        try:
            if not _async.poll(self._handle):
                return False
            self._take()
        except Exception as error:
            self._end(error=error)
        return True

    def _take(self, seconds=None):
        try:
            result = _async.synchronize(self._handle, seconds)
        except Exception as error:
            if isinstance(error, DeadlineExceeded) and seconds is not None:
                if not _async.poll(self._handle):
                    raise
                # It has ended just now, or with this error, when ranks did not come for too long.
                return self._take()
            self._end(error=error)
            raise
        self._go_on(result)

    def _go_on(self, result):
        try:
            self._handle = self._steps.send(result)
        except StopIteration as stop:
            self._end(result=stop.value)
        except BaseException as error:
            self._end(error=error)
            raise

    def _end(self, result=None, error=None):
        self._ended, self._result, self._error = True, result, error
        if self._company.get(self._name) is self:
            del self._company[self._name]
        if error is not None:
            self._company.clear()  # those that are given up now must not be driven by later ones


def move_along(company):
    """Lets chains go on, the oldest first, up to one that has to wait."""
    for chain in list(company.values()):
        if not chain.try_to_move():
            return
