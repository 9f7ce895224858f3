"""How what ranks log (`ray_logger`) comes to the callbacks of the process that started them.

    actor of RayExecutor                 log ──> Ray's queue ──> Callbacks' thread ──> callbacks
    rank of an agent (elastic)           log ──> file in the ranks' folder ──┐  ^
    the agent's actor, on the same node                             Forwarder┴──┘
"""

import contextlib
import itertools
import os
import threading
import time

import ray
from ray import cloudpickle
from ray.util.queue import Queue
from rueda.compat import run_task
from rueda.ray import ray_logger

_LOOK_SECONDS = 0.1
_ENDING = ".log"


class Callbacks:
    """Calls each of ``callbacks`` with each dictionary that is logged, in the order in which they come.

    A context: at its end all that was logged has been told. The first exception of a callback is raised then, unless
    another is under way; the callbacks are called all the same. ``queue``: for the ranks; None without callbacks.
    """

    def __init__(self, callbacks):
        self.queue = None
        self._callbacks = list(callbacks or ())
        for callback in self._callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks are functions of a dictionary; {callback!r} is none")

    def __enter__(self):
        return self.begin()

    def begin(self):
        """As the context does; `end_after` ends it."""
        if self._callbacks:
            self.queue, self._error = Queue(actor_options={"num_cpus": 0}), None
            self._thread = threading.Thread(target=self._tell, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._end()
        if self.queue is not None and kind is None and self._error is not None:
            raise self._error

    def end_after(self, references):
        """Ends when these of Ray's references have ended, in a thread; exceptions of callbacks are lost."""

        def wait():
            ray.wait(references, num_returns=len(references))
            self._end()

        if self.queue is not None:
            threading.Thread(target=wait, daemon=True).start()

    def _end(self):
        if self.queue is not None:
            self.queue.put(None)
            self._thread.join()
            self.queue.shutdown()

    def _tell(self):
        while True:
            try:
                info = self.queue.get()
            except BaseException as error:  # Ray ends, which it says by SystemExit, too
                self._error = self._error or error
                return
            if info is None:
                return
            info = cloudpickle.loads(info) if isinstance(info, bytes) else info
            for callback in self._callbacks:
                try:
                    callback(info)
                except Exception as error:
                    self._error = self._error or error


class FolderQueue:
    """Leaves each dictionary as a file, for a `Forwarder`. Of one process; threads: any."""

    def __init__(self, folder):
        self._folder, self._count = folder, itertools.count()

    def put(self, info):
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(self._count)}{_ENDING}"
        run_task.leave(os.path.join(self._folder, name), cloudpickle.dumps(info))


def logging_to(folder, function):
    """``function()`` in a rank, whose logs are left in the folder."""
    ray_logger.configure(FolderQueue(folder))
    return function()


class Forwarder:
    """Takes what ranks of a node have left in their folder to the queue; a context. Nothing without a queue."""

    def __init__(self, folder, queue):
        self._folder, self._queue = folder, queue
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        if self._queue is not None:
            self._thread.start()

    def __exit__(self, *_):
        if self._queue is not None:
            self._ended.set()
            self._thread.join()

    def _run(self):
        ended = False
        while not ended:
            ended = self._ended.wait(_LOOK_SECONDS)
            for name in sorted(os.listdir(self._folder)):
                if name.endswith(_ENDING):
                    self._take(os.path.join(self._folder, name))

    def _take(self, path):
        mine = f"{path}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):  # nodes of a test's cluster share the folder
            os.rename(path, mine)
            with open(mine, "rb") as file:
                data = file.read()
            os.unlink(mine)
            self._queue.put(data)
