"""This process's membership in its job, and the table of operations that have not been collected.

The only process-wide state of rueda lives here: one `Runtime`, because Horovod's functions take no
context. What it promises:

* Tensors and names given to `submit` are held until the library has let go of them, also when the
  caller drops the handle, runs into a deadline or is interrupted.
* Threads: every method may be called from any thread. A wait holds no lock.
* A forked child is "not initialised": it inherits neither the context nor the handles, and never
  touches the parent's library objects.
* At exit the runtime is shut down once, before arrays die.

A named operation that comes for the second time is prepared: from then on the library is told only
where the memory lies. A `Prepared` is in use once: who takes it from the cache has it alone, and
puts it back when the operation has ended well. Otherwise it is given up, and the next operation of
that name is submitted like one that never came before. Ranks need not agree on any of this.
"""

import atexit
import collections
import ctypes
import os
import threading
import time

from rueda import _ffi, _marks, _stacks
from rueda._sites import Sites
from rueda._works import Prepared, Work
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError, WrongCallError

_lib = _ffi.library
_start, _start_on = _lib.rueda_start, _lib.rueda_start_on
_prepared_wait = _lib.rueda_prepared_wait
_OK, _ABORTED = _ffi.OK, _ffi.ABORTED

# Operations that are remembered by name and form; those used longest ago are forgotten first.
_MOST_PREPARED = 4096

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

Operation = collections.namedtuple(
    "Operation",
    "kind dtype input output shape reduce_op root peer tag splits prescale postscale process_set "
    "device stream",
    defaults=(_ffi.FLOAT32, None, None, (), _ffi.SUM, 0, 0, 0, (), 1.0, 1.0, 0, -1, None),
)
Operation.__doc__ = "One rueda_op without its name; input and output are addresses."

Place = collections.namedtuple(
    "Place", "rank size local_rank local_size cross_rank cross_size is_homogeneous"
)


class _Entry:
    """A handle: its works, what they use, and how they become the caller's result."""

    __slots__ = ("finish", "keep", "prepared", "waiting", "works")

    def __init__(self, keep, finish):
        self.works = ()
        self.prepared = None  # the one work, if it is to be put back
        self.waiting = 0  # threads that wait for the works
        self.keep = keep
        self.finish = finish

    def ended(self):
        return all(work.released() for work in self.works)


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
        self._sites = Sites()
        self._clear_handles()

    def _clear_handles(self):
        self._entries = {}
        self._abandoned = []
        self._next_handle = 0
        # Of groups since the last join: process set -> kind -> number.
        self._unnamed = collections.defaultdict(collections.Counter)
        self._prepared = collections.OrderedDict()  # key: Prepared; False for what came once

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
            self._sites = Sites()
            _stacks.show(context)
            _marks.follow(context)

    def shutdown(self):
        """Leaves the job; operations in flight end with an error. Does nothing when not joined."""
        with self._lock:
            context, self._context, self._place = self._context, None, None
            if context is None:
                return
            self._was_shut_down = True
            _marks.follow(None)
            self._prepared.clear()
            self._prepared = collections.OrderedDict()  # what is in use goes back to the other
            _lib.rueda_shutdown(context)
            # Everything has ended: nobody else writes to the tensors any more. Handles stay
            # until the next init, so that a waiting thread learns how its operation ended.
            self._abandoned = []

    def after_fork_in_child(self):
        self._forget()
        _marks.follow(None)

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

    def counters(self):
        """All of them, by name."""
        with self._lock:
            context = self._require_context()
            values = (ctypes.c_int64 * _lib.rueda_counters(context, None, 0))()
            _lib.rueda_counters(context, values, len(values))
        return {_lib.rueda_counter_name(i).decode(): value for i, value in enumerate(values)}

    def lost(self):
        """The `_ffi.Lost` of the rank that was lost first, or None."""
        lost = _ffi.Lost()
        with self._lock:
            if self._context is None or not _lib.rueda_lost_rank(self._context, ctypes.byref(lost)):
                return None
        return lost

    def should_stop(self):
        """Collective. HorovodInternalError when not initialised, or as operations fail."""
        stop, code = ctypes.c_int32(), _ABORTED
        while code == _ABORTED:  # a signal came; Python has run its handlers
            error = _ffi.Error()
            code = _lib.rueda_should_stop(
                self._require_context(), ctypes.byref(stop), ctypes.byref(error)
            )
        if code != _OK:
            raise _ffi.exception(code, error)
        return stop.value != 0

    def start_timeline(self, path, mark_cycles):
        """ValueError when not initialised, or when the file cannot be written."""
        name, error = os.fsencode(path), _ffi.Error()
        if b"\0" in name:
            raise ValueError(f"the timeline's file name has a zero byte: {path!r}")
        with self._lock:
            self.place  # the error of a runtime that is not initialised
            code = _lib.rueda_start_timeline(
                self._context, name, 1 if mark_cycles else 0, ctypes.byref(error)
            )
            _marks.follow(self._context)
        if code != _ffi.OK:
            raise ValueError(error.message.decode("utf-8", "replace"))

    def stop_timeline(self):
        """ValueError when not initialised."""
        with self._lock:
            self.place  # the error of a runtime that is not initialised
            _lib.rueda_stop_timeline(self._context, None)
            _marks.follow(self._context)

    def int8(self, what, source, target, blocks, device, stream):
        """Gives ``what``, "quantize" or "dequantize", to a GPU's stream; False: there are no kernels."""
        error = _ffi.Error()
        with self._lock:
            code = getattr(_lib, "rueda_int8_" + what)(
                self._require_context(), source, target, blocks, device, stream, ctypes.byref(error)
            )
        if code not in (_ffi.OK, _ffi.UNIMPLEMENTED):
            raise _ffi.exception(code, error)
        return code == _ffi.OK

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

    def change_process_sets(self, function, *arguments):
        """Adds or removes a process set with all other ranks; gives the new one's id."""
        pointer, error = ctypes.c_void_p(), _ffi.Error()
        with self._lock:
            context = self._require_context()
            site = self._sites.number(context)
            code = function(context, *arguments, site, ctypes.byref(pointer), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        work = Work(pointer.value)
        work.wait(None)
        return work.result()

    def process_sets(self):
        """{id: ranks} of all process sets; ValueError when not initialised."""
        _ = self.place
        with self._lock:
            context = self._require_context()
            count = _lib.rueda_process_sets(context, None, 0)
            ids = (ctypes.c_int32 * count)()
            count = min(count, _lib.rueda_process_sets(context, ids, count))
            found = {}
            for set_id in ids[:count]:
                ranks = (ctypes.c_int32 * self._place.size)()
                members = _lib.rueda_process_set_ranks(context, set_id, ranks, len(ranks))
                if members >= 0:
                    found[set_id] = ranks[:members]
        return found

    def forget_process_set(self, set_id, key):
        """What was prepared and counted for a process set that is no more."""
        with self._lock:
            self._unnamed.pop(set_id, None)
            for prepared in [k for k in list(self._prepared) if k[-1] is key]:
                self._prepared.pop(prepared, None)

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
            None: counted per kind, so that the n-th unnamed operation of a kind since the last
            join meets the n-th of every other rank.
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
            self._let_go()
            if group:
                counted = self._unnamed[operations[0].process_set]
                full = name if name is not None else f"noname.{counted[kind]}"
                names = [f"{full}_{i + 1}of{count}" for i in range(count)]
            else:
                names = [name]  # None: the library counts
            site = self._sites.number(context)
            structs = (_ffi.Op * count)(*(_struct(*each, site) for each in zip(operations, names)))
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
            if name is None and group:
                counted[kind] += 1
            elif operations[0].kind == _ffi.JOIN:
                self._unnamed.pop(operations[0].process_set, None)
        return handle

    def submit_again(self, key, kind, name, operation, keep, finish):
        """`submit` of one named operation that may come again.

        ``key`` says all of it but where the memory lies, and is the same each time.
        """
        with self._lock:
            prepared = self._take_or_prepare(key, name, operation)
            if prepared is not None:
                memory = operation.input, operation.output
                place = operation.device, operation.stream
                handle = self._launch(prepared, *memory, keep, finish, *place)
                if handle is not None:
                    return handle
            return self.submit(kind, name, [operation], keep, finish)  # says what was wrong

    def start_in_place(self, key, address, keep, finish=None, device=-1, stream=None):
        """`submit_again` of what came before, input and output at ``address``; it has no result.

        None: not started. It comes for the first time, is in use or cannot be started; submit it.
        """
        with self._lock:
            prepared = self.take(key)
            if prepared is None:
                return None
            return self._launch(prepared, address, address, keep, finish or _nothing, device, stream)

    def _launch(self, prepared, source, target, keep, finish, device, stream):
        """With the lock: starts what was taken and returns its handle; None: not started."""
        self._let_go()
        handle, entry = self._next_handle, _Entry(keep, finish)
        self._next_handle += 1
        entry.works, entry.prepared = (prepared,), prepared
        self._entries[handle] = entry
        if device < 0:
            code = _start(prepared.pointer, source, target, None)
        else:
            code = _start_on(prepared.pointer, source, target, stream, None)
        if code == _OK:
            return handle
        del self._entries[handle]
        prepared.put_back()
        return None

    def _take_or_prepare(self, key, name, operation):
        """A Prepared; None for what comes for the first time, is in use or cannot be prepared."""
        context, cache = self._require_context(), self._prepared
        if key not in cache:
            cache[key] = False
            while len(cache) > _MOST_PREPARED:
                cache.popitem(last=False)
            return None
        prepared = cache.pop(key)
        if prepared is not False:
            return prepared
        site = self._sites.number(context)
        pointer, struct = ctypes.c_void_p(), _struct(operation, name, site)
        if _lib.rueda_prepare(context, struct, ctypes.byref(pointer), None) != _OK:
            return None
        return Prepared(pointer.value, cache, key)

    def take(self, key):
        """The Prepared of an operation that came before, for `run`; else None."""
        cache = self._prepared
        prepared = cache.pop(key, None)
        if prepared is False:
            cache[key] = False
            return None
        return prepared

    def run(self, prepared, source, target, keep):
        """Starts what `take` gave and waits for it. False: not started; submit it to learn why.

        ``keep`` owns the memory at ``source`` and ``target``.
        """
        pointer = prepared.pointer
        try:
            if _start(pointer, source, target, None) != _OK:
                return False
            code = _prepared_wait(pointer, -1.0, None)
            while code == _ABORTED:  # a signal came; Python has run its handlers
                code = _prepared_wait(pointer, -1.0, None)
        except BaseException:
            entry = _Entry(keep, None)
            entry.works = (prepared,)
            with self._lock:
                self._abandoned.append(entry)
            raise
        if code != _OK:
            prepared.wait(None)  # says how it ended
        prepared.put_back()
        return True

    def _let_go(self):
        if self._abandoned:
            self._abandoned = [entry for entry in self._abandoned if not entry.ended()]

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
        with self._lock:
            entry = self._entries.get(handle)
            if entry is None:
                return None
            entry.waiting += 1
        end = None if timeout is None else time.monotonic() + timeout
        try:
            for work in entry.works:
                work.wait(None if end is None else max(0.0, end - time.monotonic()))
        except DeadlineExceeded:
            raise
        except Exception:
            self.abandon(handle)
            raise
        finally:
            with self._lock:
                entry.waiting -= 1
        try:
            return entry.finish(entry.works)  # before somebody else may start what was prepared
        finally:
            with self._lock:
                self._entries.pop(handle, None)
                if entry.prepared is not None and entry.waiting == 0:
                    entry.prepared.put_back()
                    entry.prepared = None

    def abandon(self, handle):
        """Gives a handle up; its tensors are held until the library has let go of them."""
        with self._lock:
            entry = self._entries.pop(handle, None)
            if entry is not None and not entry.ended():
                self._abandoned.append(entry)


def _nothing(works):
    """The result of what has none."""


def _struct(operation, name, site=0):
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
        None if name is None else name.encode(),
        operation.input,
        operation.output,
        shape,
        len(operation.shape),
        len(operation.splits),
        splits if operation.splits else None,
        operation.prescale,
        operation.postscale,
        operation.process_set,
        site,
        operation.device,
        0,
        operation.stream,
    )


runtime = Runtime()
_ffi.find_lost = runtime.lost
atexit.register(runtime.shutdown)
os.register_at_fork(after_in_child=runtime.after_fork_in_child)
