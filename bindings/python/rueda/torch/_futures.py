"""Futures of what goes on: completed by whoever waits for them, at the end of a backward pass, or by a thread.

Callbacks run where a future is completed, and may wait for other futures (PowerSGD's do). So a wait here
completes what it waits for in its own thread, and the thread that completes what nobody waits for lets
another one take its place before it runs callbacks: none of them waits for a thread that is taken.

In a backward pass the autograd engine's callback completes them, in the order in which they were asked
for: then callbacks that start collectives do it in the same order on all ranks.
"""

import os
import select
import threading

import torch
from torch.autograd import Variable

from rueda._runtime import runtime
from rueda.torch._outside import outside_graphs

# What tells that a backward pass runs; PyTorch before 2.1 has neither, and a thread completes futures there.
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_node = getattr(torch._C, "_current_autograd_node", lambda: None)


class Helped(torch.futures.Future):
    """A future that a thread which waits for it can complete by itself. ``devices``: of its tensors."""

    def __init__(self, devices):
        super().__init__(devices=devices or None)
        self._devices = devices

    def help_on(self):
        raise NotImplementedError

    def wait(self):
        self.help_on()
        return super().wait()

    def done(self):
        return super().done()

    def then(self, callback):
        child = _Then(self)

        def finish(parent):
            try:
                result = callback(parent)
            except BaseException as error:
                child.set_exception(error)
            else:
                child.set_result(result)

        super().then(finish)
        return child


class _Then(Helped):
    """What `then` gives; waiting for it completes what it comes behind, which runs the callback here."""

    def __init__(self, parent):
        super().__init__(parent._devices)
        self._parent = parent

    def help_on(self):
        parent = self._parent
        if parent is not None and not torch.futures.Future.done(self):
            parent.help_on()
        self._parent = None


class HandleFuture(Helped):
    """What `synchronize` gives for a handle."""

    def __init__(self, handle):
        # Any of them: what a handle's tensors lie on is known when they are there.
        count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        super().__init__([torch.device("cuda", device) for device in range(count)])
        self._handle = handle
        self._lock = threading.Lock()

    def help_on(self):
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return  # another thread completes it
        try:
            result = runtime.synchronize(handle)
        except Exception as error:
            self.set_exception(error)
        except BaseException:  # an interrupt: whoever waits next goes on
            self._handle = handle
            raise
        else:
            self.set_result(result)

    def done(self):
        with self._lock:
            ended = self._handle is not None and runtime.poll(self._handle)
        if ended:
            self.help_on()
        return super().done()


@outside_graphs
def get_future(handle):
    """The `torch.futures.Future` of an asynchronous operation.

    For hooks and callbacks (``future.then(...)``). The handle is the future's from then on: do not
    `synchronize` it. Callbacks run where the future is completed: by who waits for it, at the end of the
    backward pass in which it was made, or else in a thread.

    Parameters
    ----------
    handle : int
        From an ``*_async`` function. ValueError for one that is not in use.
    """
    runtime.poll(handle)
    future = HandleFuture(handle)
    complete_later(future, lambda: runtime.watched(handle))
    return future


def complete_later(future, request):
    """Sees to it that a future is completed though nobody may wait for it.

    ``request``: gives the one whose end is waited for, if a thread must see that.
    """
    if _graph_task() == -1:
        _watcher.watch(future, request())
    elif _node() is not None:
        Variable._execution_engine.queue_callback(future.help_on)
    else:
        # The pass is over, and this is a callback of its end (DDP's with a static graph), which may wait
        # for the future before any that is queued now.
        future.help_on()


class _Watcher:
    """Threads of which one sleeps until requests end, while the others complete their futures."""

    def __init__(self):
        self._lock = threading.Lock()
        self._poll = None
        self._futures = {}  # descriptor: (future, request)
        self._led = False  # a thread sleeps, or is about to
        self._turn = threading.Semaphore(0)
        self._idle = 0

    def watch(self, future, request):
        fd = request.event_fd()
        with self._lock:
            if self._poll is None:
                self._poll = select.epoll()
            self._futures[fd] = future, request
            self._lead_on()
        self._poll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def _lead_on(self):
        """Another thread takes the lead, if none has it. Under the lock."""
        if self._led:
            return
        self._led = True
        if self._idle:
            self._idle -= 1
            self._turn.release()
        else:
            threading.Thread(target=self._serve, name="rueda futures", daemon=True).start()

    def _serve(self):
        while True:
            ready = self._poll.poll()
            with self._lock:
                self._led = False
                ended = [self._futures.pop(fd, None) for fd, _ in ready]
                for fd, _ in ready:
                    self._poll.unregister(fd)
                if self._futures:
                    self._lead_on()
            for future, _ in filter(None, ended):
                future.help_on()
            del ended, ready
            with self._lock:
                if not self._led and self._futures:
                    self._led = True
                    continue
                self._idle += 1
            self._turn.acquire()


def _forget():
    global _watcher
    _watcher = _Watcher()


_forget()
os.register_at_fork(after_in_child=_forget)
