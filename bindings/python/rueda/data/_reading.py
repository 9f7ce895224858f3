"""The rest of an epoch, for one rank, read step by step: where the order, the deal, the readers and the background meet."""

import functools
import os

from rueda.data import _waits
from rueda.data._prefetch import Prefetch
from rueda.data._process import ReaderProcess


class Reading:
    """Batches of one `Deal`. Used by one thread.

    Its threads and processes end with `close`, which whoever has it calls at the latest when it is collected.

    Parameters
    ----------
    deal : Deal
    order : Order
    read : Reader
    empty : callable
        ``empty(shape, dtype)`` makes a batch's arrays.
    prefetch, workers : int
    processes : bool
        As the loader has them.
    """

    def __init__(self, deal, order, read, empty, prefetch, workers, processes):
        self.deal = deal
        self._step = 0
        self._pid = os.getpid()
        self._processes, self._prefetch = [], None
        workers = min(workers, prefetch, deal.my_steps)
        if processes:
            try:
                for number in range(workers):  # before there are threads
                    self._processes.append(ReaderProcess(number, read))
            except BaseException:
                self.close()
                raise
        readers = self._processes or [read] * max(1, workers)
        self._read = functools.partial(_read_step, deal, order, readers, empty)
        if workers:
            self._prefetch = Prefetch(deal.my_steps, self._read, prefetch, workers)

    def take(self):
        """The next batch of arrays."""
        if os.getpid() != self._pid:
            raise RuntimeError("this loop over a loader was begun in another process: begin one here")
        with _waits.counted("batches"):
            batch = self._read(self._step, 0) if self._prefetch is None else self._prefetch.take()
        self._step += 1
        return batch

    def close(self):
        """Ends what runs in the background. May be called again. In a forked process nothing of it is there to be ended."""
        if os.getpid() != self._pid:
            return
        processes, self._processes = self._processes, []
        if self._step < self.deal.my_steps:
            for process in processes:
                process.kill()  # threads wait for them
        if self._prefetch is not None:
            self._prefetch.close()
        for process in processes:
            process.close()


def _read_step(deal, order, readers, empty, step, worker):
    return readers[worker](order(deal.positions(step)), empty)
