"""Batches read ahead of time, by some threads, in order and within bounds.

    threads      claim the next step  ->  read it  ->  put the batch, or the exception, to its step
    who takes    the batch of the next step, when it is there

At most ``depth`` batches are read or wait to be taken. An exception comes out at the step whose it is, after the batches before.
"""

import threading


class Prefetch:
    """Reads steps 0 to ``steps`` - 1.

    Parameters
    ----------
    steps : int
    read : callable
        ``read(step, worker)`` gives a batch; called by ``workers`` threads, numbered from 0.
    depth : int
    workers : int
    """

    def __init__(self, steps, read, depth, workers):
        self._steps, self._read, self._depth = steps, read, depth
        self._change = threading.Condition()  # of all below; reentrant, as a collected loop may close this from any thread
        self._claimed = self._taken = 0
        self._done = {}  # step: (batch, exception)
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), daemon=True, name=f"rueda data {worker}")
            for worker in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def take(self):
        """The next batch; waits for it."""
        with self._change:
            while self._taken not in self._done:
                if self._is_closed:
                    raise RuntimeError("this loop over a loader is closed")
                self._change.wait()
            batch, error = self._done.pop(self._taken)
            self._taken += 1
            self._change.notify_all()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return batch

    def close(self):
        """Ends the threads, after what they are reading. May be called again, from any thread."""
        with self._change:
            self._is_closed = True
            self._done.clear()
            self._change.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _claim(self):
        """The next step to read; None: there is none."""
        with self._change:
            while not self._is_closed and self._claimed < self._steps:
                if self._claimed < self._taken + self._depth:
                    self._claimed += 1
                    return self._claimed - 1
                self._change.wait()
        return None

    def _work(self, worker):
        while (step := self._claim()) is not None:
            batch = error = None
            try:
                batch = self._read(step, worker)
            except BaseException as raised:
                error = raised
            with self._change:
                if not self._is_closed:
                    self._done[step] = batch, error
                    self._change.notify_all()
