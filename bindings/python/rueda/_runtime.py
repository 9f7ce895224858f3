"""This process's membership in its job, and the table of operations that have not been collected.

The only process-wide state of rueda lives here: one `Runtime`, because Horovod's functions take no
context. What it promises:

* Tensors and names given to `submit` are held until the library has let go of them, also when the
  caller drops the handle, runs into a deadline or is interrupted.
* Threads: every method may be called from any thread. A wait holds no lock.
* A forked child is "not initialised": it inherits neither the context nor the handles, and never
  touches the parent's library objects.
* At exit the runtime is shut down once, before arrays die.
"""

import atexit
import collections
import ctypes
import os
import threading
import time

from rueda import _ffi
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, WrongCallError

_lib = _ffi.library

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

Operation = collections.namedtuple(
    "Operation",
    "kind dtype input output shape reduce_op root peer tag splits prescale postscale",
    defaults=(_ffi.FLOAT32, None, None, (), _ffi.SUM, 0, 0, 0, (), 1.0, 1.0),
)
Operation.__doc__ = "One rueda_op without its name; input and output are addresses."

Place = collections.namedtuple(
    "Place", "rank size local_rank local_size cross_rank cross_size is_homogeneous"
)


class Work:
    """Owns one rueda_work. Its output memory lives exactly as long as this object."""

    __slots__ = ("__weakref__", "_pointer", "_process")

    def __init__(self, pointer):
        self._pointer = pointer
        self._process = os.getpid()

    def poll(self):
        return _lib.rueda_work_poll(self._pointer) != 0

    def wait(self, seconds):
        """Waits until the work has ended; raises how it failed or DeadlineExceeded. None: for ever.

        A signal ends the library's wait, Python runs its handlers, and the wait goes on: so Ctrl-C
        raises KeyboardInterrupt here.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = -1.0 if end is None else max(0.0, end - time.monotonic())
            error = _ffi.Error()
            code = _lib.rueda_work_wait(self._pointer, left, ctypes.byref(error))
            if code == _ffi.OK:
                return
            if code != _ffi.ABORTED:
                raise _ffi.exception(code, error)

    def output(self):
        """(address, shape) of the result that the work owns."""
        data = ctypes.c_void_p()
        shape = (ctypes.c_int64 * _ffi.MAX_NDIM)()
        ndim = _lib.rueda_work_output(self._pointer, ctypes.byref(data), shape, _ffi.MAX_NDIM)
        if ndim < 0:
            raise HorovodInternalError("the operation has no output")
        return data.value or 0, tuple(shape[:ndim])

    def received_splits(self, size):
        splits = (ctypes.c_int64 * size)()
        count = _lib.rueda_work_received_splits(self._pointer, splits, size)
        return list(splits[:count])

    def __del__(self):
        # A forked child has a copy of the pointer but must not enter the parent's library state.
        if _lib is not None and self._pointer and self._process == os.getpid():
            _lib.rueda_work_release(self._pointer)
            self._pointer = None


class _Entry:
    """A handle: its works, what they use, and how they become the caller's result."""

    __slots__ = ("finish", "keep", "works")

    def __init__(self, keep, finish):
        self.works = ()
        self.keep = keep
        self.finish = finish

    def ended(self):
        return all(work.poll() for work in self.works)


class Runtime:
    """The process's default context. One instance, at the end of this file."""

    def __init__(self):
        self._forget()

    def _forget(self):
        # Reentrant, because a signal handler or finaliser may call in while this thread holds it.
        self._lock = threading.RLock()
        self._context = None
        self._place = None
        self._was_shut_down = False
        self._clear_handles()

    def _clear_handles(self):
        self._entries = {}
        self._abandoned = []
        self._next_handle = 0
        self._unnamed = collections.Counter()

    # Life cycle.

    def init(self):
        """Joins the job. Does nothing when already joined."""
        with self._lock:
            if self._context is not None:
                return
            context, error, code = ctypes.c_void_p(), _ffi.Error(), _ffi.ABORTED
            while code == _ffi.ABORTED:  # a signal came; Python has run its handlers
                code = _lib.rueda_init(None, ctypes.byref(context), ctypes.byref(error))
            if code != _ffi.OK:
                message = error.message.decode("utf-8", "replace")
                raise WrongCallError(f"Horovod initialization failed: {message}")
            self._clear_handles()
            self._place = Place(
                *(getattr(_lib, "rueda_" + field)(context) for field in Place._fields[:-1]),
                is_homogeneous=_lib.rueda_is_homogeneous(context) != 0,
            )
            self._context = context

    def shutdown(self):
        """Leaves the job; operations in flight end with an error. Does nothing when not joined."""
        with self._lock:
            context, self._context, self._place = self._context, None, None
            if context is None:
                return
            self._was_shut_down = True
            _lib.rueda_shutdown(context)
            # Everything has ended: nobody else writes to the tensors any more. Handles stay
            # until the next init, so that a waiting thread learns how its operation ended.
            self._abandoned = []

    def after_fork_in_child(self):
        self._forget()

    def is_initialized(self):
        return self._context is not None

    @property
    def place(self):
        """Rank, size and so on; ValueError when not initialised."""
        place = self._place
        if place is None:
            raise ValueError(NOT_INITIALIZED)
        return place

    def counter(self, name):
        with self._lock:
            return _lib.rueda_counter(self._require_context(), name.encode())

    def allocate(self, nbytes):
        """Address of zeroed memory that this host's ranks share; `rueda._heap` gives it back.

        MemoryError says how much is in use.
        """
        address, error = ctypes.c_void_p(), _ffi.Error()
        with self._lock:
            context = self._require_context()
            code = _lib.rueda_alloc(context, nbytes, ctypes.byref(address), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        return address.value

    def _require_context(self):
        if self._context is None:
            was = "Horovod has been shut down and " if self._was_shut_down else "Horovod "
            raise HorovodInternalError(was + "has not been initialized; use hvd.init().")
        return self._context

    def require_running(self):
        """Place of a running runtime; HorovodInternalError otherwise (what operations raise)."""
        self._require_context()
        return self.place

    # Operations.

    def submit(self, kind, name, operations, keep, finish, group=False):
        """Starts operations and returns their handle.

        Parameters
        ----------
        kind : str
            What is counted when there is no name. The library puts the collective's name in front:
            the ranks agree on ``<collective>.<name>``.
        name : str or None
            None: ``noname.<n>``, counted per kind, so that the n-th unnamed operation of a kind
            meets the n-th of every other rank.
        operations : list of Operation
        keep : object
            Whatever owns the memory that the operations point to.
        finish : callable
            Called once with the list of ended `Work`; returns what `synchronize` returns.
        group : bool
            Reduce as one; members are named ``<name>_<i>of<n>``.
        """
        count = len(operations)
        works = (ctypes.c_void_p * count)()
        error = _ffi.Error()
        with self._lock:
            context = self._require_context()
            self._abandoned = [entry for entry in self._abandoned if not entry.ended()]
            full = name if name is not None else f"noname.{self._unnamed[kind]}"
            names = [f"{full}_{i + 1}of{count}" for i in range(count)] if group else [full]
            structs = (_ffi.Op * count)(*map(_struct, operations, names))
            handle, entry = self._next_handle, _Entry(keep, finish)
            self._next_handle += 1
            # Known to the table first: an interrupt between the next lines must not free tensors.
            self._entries[handle] = entry
            code = _lib.rueda_submit(
                context, structs, count, 1 if group else 0, works, ctypes.byref(error)
            )
            if code != _ffi.OK:
                del self._entries[handle]
                raise _ffi.exception(code, error)
            entry.works = [Work(pointer) for pointer in works]
            if name is None:
                self._unnamed[kind] += 1
        return handle

    def poll(self, handle):
        """Whether the operation has ended. ValueError for a handle that is not in use."""
        entry = self._entries.get(handle)
        if entry is None:
            raise ValueError(f"Handle {handle} was not created or has been cleared.")
        return entry.ended()

    def synchronize(self, handle, timeout=None):
        """Waits for the operation and returns its result, or raises how it failed.

        None for a handle that is not in use. After DeadlineExceeded (``timeout`` seconds passed)
        and after an interrupt the handle stays valid.
        """
        entry = self._entries.get(handle)
        if entry is None:
            return None
        end = None if timeout is None else time.monotonic() + timeout
        try:
            for work in entry.works:
                work.wait(None if end is None else max(0.0, end - time.monotonic()))
        except DeadlineExceeded:
            raise
        except Exception:
            self.abandon(handle)
            raise
        self._entries.pop(handle, None)
        return entry.finish(entry.works)

    def abandon(self, handle):
        """Gives a handle up; its tensors are held until the library has let go of them."""
        with self._lock:
            entry = self._entries.pop(handle, None)
            if entry is not None and not entry.ended():
                self._abandoned.append(entry)


def _struct(operation, name):
    shape = (ctypes.c_int64 * len(operation.shape))(*operation.shape)
    splits = (ctypes.c_int64 * len(operation.splits))(*operation.splits)
    return _ffi.Op(
        ctypes.sizeof(_ffi.Op),
        operation.kind,
        operation.dtype,
        operation.reduce_op,
        operation.root,
        operation.peer,
        operation.tag,
        name.encode(),
        operation.input,
        operation.output,
        shape,
        len(operation.shape),
        len(operation.splits),
        splits if operation.splits else None,
        operation.prescale,
        operation.postscale,
    )


runtime = Runtime()
atexit.register(runtime.shutdown)
os.register_at_fork(after_in_child=runtime.after_fork_in_child)
