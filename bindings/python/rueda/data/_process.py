"""A forked process that reads batches; its arrays arrive in this process's shared memory.

Over a pipe: the numbers of the samples go there, and back comes a head (the batch pickled without its arrays, protocol 5) and then
each array's bytes, straight into where they stay. Forked, not spawned, because scripts start jobs at their top level: a process
that imported one again would join the job. The child knows its rank, and uses nothing of the parent's job.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback

from rueda._numpy import np
from rueda.data._batches import shortened
from rueda.data._errors import DataError
from rueda.data._memory import private

_READ, _FAILED = 0, 1


class RemoteTraceback(Exception):
    """The cause of an exception that another process has raised: its traceback, as text."""

    def __str__(self):
        return f'\n"""\n{self.args[0]}"""'


class ReaderProcess:
    """One of a loader's. Used by one thread at a time; `close` by any.

    Parameters
    ----------
    number : int
        Of the worker, for messages.
    read : callable
        ``read(indices, empty)`` gives a batch.
    """

    def __init__(self, number, read):
        context = multiprocessing.get_context("fork")
        self._number = number
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._pipe, read), daemon=True, name=f"rueda data worker {number}"
        )
        self._process.start()
        theirs.close()

    def __call__(self, indices, empty):
        """The batch, whose arrays ``empty`` has made; raises what the process raised, or `DataError` if it is gone."""
        try:
            self._pipe.send_bytes(pickle.dumps(indices))
            kind, head, sizes = pickle.loads(self._pipe.recv_bytes())
            if kind == _FAILED:
                raise _revived(*head)
            buffers = [self._received(size, empty) for size in sizes]
        except (EOFError, ConnectionError, BrokenPipeError):
            raise DataError(self._ending(indices.tolist())) from None
        return pickle.loads(head, buffers=buffers)

    def _received(self, size, empty):
        buffer = empty((size,), np.dtype(np.uint8))
        if size:
            self._pipe.recv_bytes_into(buffer)
        return buffer

    def _ending(self, indices):
        self._process.join()
        code = self._process.exitcode
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
        hint = "; if nobody did that, the machine may be out of memory" if code == -signal.SIGKILL else ""
        return (
            f"data worker {self._number} (pid {self._process.pid}) {how} "
            f"while it read samples {shortened(indices)}{hint}"
        )

    def kill(self):
        """Ends the process at once; whoever waits for it hears of it. Then `close`."""
        self._process.kill()

    def close(self):
        """Ends the process, when nobody uses it any more."""
        with contextlib.suppress(OSError):
            # Not by closing alone: processes forked later have this end of the pipe, too.
            self._pipe.send_bytes(b"")
        self._pipe.close()
        self._process.join()
        self._process.close()


def _revived(error, summary, text):
    """The exception of the other process, with its traceback as the cause."""
    error = pickle.loads(error) if error else DataError(f"a data worker has raised {summary}")
    error.__cause__ = RemoteTraceback(text)
    return error


def _serve(pipe, parents, read):
    """The process: reads what it is asked for, until the parent says that it is over, or is gone."""
    parents.close()
    read.forked()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the parent's threads are not here
    with contextlib.suppress(EOFError, ConnectionError, BrokenPipeError):
        while asked := pipe.recv_bytes():
            indices = pickle.loads(asked)
            buffers = []
            try:
                head = pickle.dumps(read(indices, private), protocol=5, buffer_callback=buffers.append)
                views = [buffer.raw() for buffer in buffers]
            except Exception as error:
                pipe.send_bytes(pickle.dumps((_FAILED, _flat(error), ())))
                continue
            pipe.send_bytes(pickle.dumps((_READ, head, [view.nbytes for view in views])))
            for view in views:
                if view.nbytes:
                    pipe.send_bytes(view)
    sys.stdout.flush()
    os._exit(0)


def _flat(error):
    """(the exception pickled, or nothing where it cannot be; itself in a line; its traceback as text)"""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = b""
    return pickled, f"{type(error).__name__}: {error}", text
