"""Futures of works (`rueda.torch._futures`)."""

import threading

from rueda.torch._futures import Helped


class WorkFuture(Helped):
    """The result of a work, as Gloo's: the list of its tensors."""

    def __init__(self, work, devices):
        super().__init__(devices)
        self._work = work
        self._lock = threading.Lock()

    def help_on(self):
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return  # another thread completes it
        try:
            work.wait()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(work.result())

    def done(self):
        work = self._work
        if work is not None and work.is_completed():
            self.help_on()
        return super().done()
