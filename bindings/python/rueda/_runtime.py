"""The runtime of this process, and the table of operations that have not been collected.

The only process-wide state of rueda lives here: one `Runtime`, because Horovod's functions take no
context. What it promises, besides what `_membership` does:

* Tensors and names given to `submit` are held until the library has let go of them, also when the
  caller drops the handle, runs into a deadline or is interrupted.
* A wait holds no lock. When another thread shuts down, what is under way ends with an error.
* A forked child does not inherit the handles.
* At exit the runtime is shut down once, before arrays die.

A named operation that comes for the second time becomes a persistent request: from then on the library
is told only where the memory lies. Such a request is in use once: who takes it from the cache has it
alone, and puts it back when the operation has ended well (an optimizer's gradient keeps its own).
Otherwise it is given up, and the next operation of that name is submitted like one that never came
before. Of unnamed operations, and of those whose results have no size beforehand, the runtime remembers
the `Form` in the same way. Ranks need not agree on any of this.
"""

import atexit
import collections
import ctypes
import itertools
import os
import time

from rueda import _ffi
from rueda._forms import Form
from rueda._membership import own_name
from rueda._operation import Operation, struct_of
from rueda._requests import GO_ON, SLICE, Request, wait_any
from rueda._services import Services
from rueda.common.exceptions import DeadlineExceeded, HorovodInternalError

_lib = _ffi.library
_start, _run = _lib.rueda_request_start, _lib.rueda_request_run
_OK = _ffi.OK

# Operations that are remembered by name and form, beside the gradients of optimizers; those used longest ago are
# forgotten first.
_MOST_PERSISTENT = 4096


class _Entry:
    """A handle: its requests, what they use, and how they become the caller's result."""

    __slots__ = ("finish", "keep", "persistent", "pointers", "requests", "told", "waiting")

    def __init__(self, keep, finish, requests=()):
        self.requests = requests
        self.pointers = ()  # what the library gives for the requests, while they are started
        self.persistent = None  # the one request, if it is to be put back
        self.waiting = 0  # threads that wait for the requests
        self.told = False  # by wait_any, that it has ended
        self.keep = keep
        self.finish = finish

    def own(self):
        """The requests own what was started. It may be called again, by whoever was interrupted here."""
        for request, pointer in zip(self.requests, self.pointers):
            request.pointer = pointer

    def ended(self):
        return all([r.memory_released() for r in self.requests])


def member_name(name, i):
    """Of the i-th tensor of a named group. The first has the group's own: as many tensors as another rank may give, they meet."""
    return f"{name}[{i}]" if i else name


class Runtime(Services):
    """The process's default context. One instance, at the end of this file."""

    def _forget(self):
        super()._forget()
        self._handles = itertools.count()
        self._reserved = 0  # more operations that are remembered
        self._abandoned = set()  # entries of memory in use that nobody will ask for
        self._clear_handles()

    def _clear_handles(self):
        self._entries = {}
        self._named = {}  # (kind, name): handle, for _claim alone
        self._strict = os.environ.get("RUEDA_HOROVOD_STRICT", "0") not in ("", "0")
        self._first_handle = next(self._handles)  # all of this job are above
        self._persistent = collections.OrderedDict()  # key: Request or Form; False for what came once

    def _begin_operations(self):
        self._clear_handles()
        self._let_go()

    def _end_operations(self):
        self._persistent.clear()
        self._persistent = collections.OrderedDict()  # what is in use goes back to the other

    def largest(self, name, number):
        """The largest of all ranks' numbers, of 63 bits. Collective."""
        memory = ctypes.c_int64(number)
        address = ctypes.addressof(memory)
        operation = Operation(_ffi.ALLREDUCE, _ffi.INT64, address, address, (1,), _ffi.MAX)
        return self.complete("allreduce", name, [operation], memory, lambda requests: memory.value)

    def forget_process_set(self, set_id, key):
        """What was remembered and counted for a process set that is no more."""
        with self._lock:
            for persistent in [k for k in list(self._persistent) if k[-1] is key]:
                self._persistent.pop(persistent, None)

    def submit(self, kind, name, operations, keep, finish, group=False):
        """Starts operations and returns their handle.

        Parameters
        ----------
        kind : str
            What the caller called, for messages. The library puts the collective's name in front of
            names: the ranks agree on ``<collective>.<name>``.
        name : str or None
            None: counted per collective, so that the n-th unnamed operation or group of one since the
            last join meets the n-th of every other rank.
        operations : sequence of Operation
        keep : object
            Whatever owns the memory that the operations point to.
        finish : callable
            Called once with the list of ended `Request`; returns what `synchronize` returns.
        group : bool
            Reduce as one; members are named ``<name>``, ``<name>[1]``, ``<name>[2]``, ...: without their
            number, so that groups of other sizes, and a tensor without a group, meet and are told so.
            Without a name the library does the like, and a group counts as one operation.
        """
        entry, handle = _Entry(keep, finish), next(self._handles)
        if self._strict and name:
            self._claim(kind, name, handle)
        try:
            self._entries[handle] = entry
            self._begin(entry, name, operations, group)
            return handle
        except BaseException:
            self._entries.pop(handle, None)
            self._hold(entry)
            raise

    def complete(self, kind, name, operations, keep, finish, group=False):
        """`submit` and `synchronize` without a handle; whoever is interrupted gives the result up."""
        entry = _Entry(keep, finish)
        try:
            self._begin(entry, name, operations, group)
            for request in entry.requests:
                request.wait()
            return finish(entry.requests)
        except BaseException:
            self._hold(entry)
            raise

    def _begin(self, entry, name, operations, group):
        """Starts the operations of an entry."""
        context = self.require_context()
        self._let_go()
        names = [name] * len(operations)  # None: the library counts
        if group and name is not None:
            names = [member_name(name, i) for i in range(len(operations))]
        self._start(entry, context, operations, names, int(group))

    def _start(self, entry, context, operations, names, group):
        count, site = len(operations), context.site()
        structs = (_ffi.Op * count)(*(struct_of(*each, site) for each in zip(operations, names)))
        # Made before: whoever is interrupted between the next lines finds here what was started.
        entry.requests = [Request(None) for _ in range(count)]
        entry.pointers = (ctypes.c_void_p * count)()
        code = _lib.rueda_start(context, structs, count, group, entry.pointers, None)
        if code != _OK:  # asks again, with room for what is wrong
            error = _ffi.Error()
            code = _lib.rueda_start(
                context, structs, count, group, entry.pointers, ctypes.byref(error)
            )
        entry.own()
        if code != _OK:
            entry.requests = ()
            raise _ffi.exception(code, error)

    def _claim(self, kind, name, handle):
        """RUEDA_HOROVOD_STRICT: a name belongs to its handle until that is synchronized. ValueError: it does."""
        if self._named.get((kind, name)) in self._entries:
            raise ValueError(
                f"{kind} '{name}': Requested to {kind} a tensor with the same name as another tensor that is "
                "currently being processed; synchronize its handle first, or give it another name"
            )
        self._named[kind, name] = handle

    def submit_again(self, key, kind, name, operation, keep, finish):
        """`submit` of one named operation that may come again.

        ``key`` says all of it but where the memory lies, and is the same each time.
        """
        request = None if self._strict else self._take_or_make(key, name, operation)
        if request is not None:
            entry, handle = _Entry(keep, finish, (request,)), next(self._handles)
            entry.persistent = request
            memory = operation.input, operation.output, operation.stream
            try:
                self._entries[handle] = entry
                if _start(request.pointer, *memory, None) == _OK:
                    return handle
            except BaseException:
                self._entries.pop(handle, None)
                self._hold(entry)
                raise
            del self._entries[handle]
            request.put_back()
        return self.submit(kind, name, [operation], keep, finish)  # says what was wrong

    def complete_again(self, key, kind, name, operation, keep, finish):
        """`complete` of one named operation that may come again."""
        if operation.device >= 0:  # it has ended when the GPU has been given it: nobody waits for the GPU
            return self.synchronize(self.submit_again(key, kind, name, operation, keep, finish))
        request = self._take_or_make(key, name, operation)
        result = False
        if request is not None:
            result = self.run(request, operation.input, operation.output, keep, finish)
        return result if result is not False else self.complete(kind, name, [operation], keep, finish)

    def complete_alike(self, key, kind, name, operation, keep, finish):
        """`complete` of one operation that may come again, whose `Form` is remembered."""
        result = self.complete(kind, name, [operation], keep, finish)
        context, cache = self.require_context(), self._persistent
        if self._is_first(key, cache):
            return result
        cache[key] = Form(context, struct_of(operation, name), cache, key)
        return result

    def _take_or_make(self, key, name, operation):
        """A persistent request; None for what comes for the first time, is in use or cannot be one."""
        context, cache = self.require_context(), self._persistent
        self._let_go()
        if self._is_first(key, cache):
            return None
        request = cache.pop(key, False)
        if request is not False:
            return request
        pointer, struct = ctypes.c_void_p(), struct_of(operation, name, context.site())
        if _lib.rueda_request_create(context, struct, 1, 0, ctypes.byref(pointer), None) != _OK:
            return None
        return Request(pointer.value, cache, key)

    def reserve(self, count):
        """Room to remember that many more operations, or, below zero, fewer.

        Whoever has more than fit and uses them in turn would never find one that is remembered.
        """
        self._reserved += count

    def _is_first(self, key, cache):
        """Whether it comes for the first time, or its request is in use; from now on it has come."""
        if key in cache:
            return False
        cache[key] = False
        try:
            while len(cache) > _MOST_PERSISTENT + max(0, self._reserved):
                cache.popitem(last=False)
        except KeyError:  # another thread has emptied it
            pass
        return True

    def take(self, key):
        """The request of an operation that came before, for `run`, or its form, for `run_alike`; else None."""
        if self._abandoned:
            self._let_go()
        cache = self._persistent
        request = cache.pop(key, None)
        if request is False:
            cache[key] = False
            return None
        return request

    def run(self, request, source, target, keep, finish=None):
        """Starts what `take` gave and waits for it. False: not started; submit it to learn why.

        ``keep`` owns the memory at ``source`` and ``target``. Returns what ``finish`` does, else True.
        """
        try:
            code = _run(request.pointer, source, target, None, SLICE, None)
            if code != _OK:
                if request.test():
                    request.check()  # says how it ended
                    if code not in GO_ON:  # it has not begun: how the last one ended
                        request.put_back()
                        return False
                else:
                    request.wait()
            result = True if finish is None else finish((request,))
        except BaseException:
            self.hold((request,), keep)
            raise
        request.put_back()
        return result

    def run_alike(self, form, source, target, keep, adopt=None):
        """`run` of a form. Returns the request that has ended, or what ``adopt`` makes of the memory that it
        owns, alike ``keep``; None: not started.
        """
        request = Request(None)
        try:
            if form.run(request, source, target) != _OK and request.pointer is not None:
                request.wait()  # goes on, or says how it failed
            result = request
            if request.pointer is None:
                result = None
            elif adopt is not None:
                result = adopt(*request.output(form.buffers), keep, request)
        except BaseException:
            form.own(request)
            self._hold(_Entry(keep, None, (request,)))
            raise
        form.put_back()
        return result

    def hold(self, requests, keep):
        """Keeps what owns the memory of started operations until the library has let go of it."""
        self._let_go()
        self._hold(_Entry(keep, None, requests))

    def _hold(self, entry):
        entry.own()
        entry.requests = [request for request in entry.requests if request.pointer]
        self._abandoned.add(entry)
        if entry.ended():
            self._abandoned.discard(entry)

    def _let_go(self):
        if self._abandoned:
            for entry in list(self._abandoned):  # finalisers may add more meanwhile
                if entry.ended():
                    self._abandoned.discard(entry)

    def handle_of(self, result):
        """A handle of something that has ended, and gave ``result``."""
        handle = next(self._handles)
        self._entries[handle] = _Entry(None, lambda requests: result)
        return handle

    def tell_result(self, handle, tell):
        """``tell(result)`` is called when the handle is synchronized."""
        entry = self._entries[handle]
        finish = entry.finish

        def finish_and_tell(requests):
            result = finish(requests)
            tell(result)
            return result

        entry.finish = finish_and_tell

    def poll(self, handle):
        """Whether the operation has ended. ValueError for a handle that is not in use."""
        entry = self._entries.get(handle)
        if entry is None:
            raise ValueError(f"Handle {handle} was not created or has been cleared.")
        return entry.ended()

    def synchronize(self, handle, timeout=None):
        """Waits for the operation and returns its result, or raises how it failed.

        None for a handle that is not in use; HorovodInternalError for one of a job that has been left.
        After DeadlineExceeded (``timeout`` seconds passed) and after an interrupt the handle stays valid.
        """
        with self._lock:
            entry = self._entries.get(handle)
            if entry is None:
                if isinstance(handle, int) and 0 <= handle <= self._first_handle:
                    raise HorovodInternalError(f"{own_name()} has been shut down since this was started.")
                return None
            entry.waiting += 1
        end = None if timeout is None else time.monotonic() + timeout
        try:
            for request in entry.requests:
                request.wait(timeout, end)
        except DeadlineExceeded:
            raise
        except Exception:
            self.abandon(handle)
            raise
        finally:
            with self._lock:
                entry.waiting -= 1
        try:
            return entry.finish(entry.requests)  # before somebody else may start a persistent one
        finally:
            with self._lock:
                self._entries.pop(handle, None)
                if entry.persistent is not None and entry.waiting == 0:
                    entry.persistent.put_back()
                    entry.persistent = None

    def wait_any(self, handles, timeout=None):
        """The first of these handles that has ended and was not given before; None where none is left."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                entries = [self._entries.get(handle) for handle in handles]
                for handle, entry in zip(handles, entries):
                    if entry is not None and not entry.told and all([r.test() for r in entry.requests]):
                        entry.told = True
                        return handle
            # Of each that has several the first that has not ended: each end is told once.
            waited = [
                next((r for r in entry.requests if not r.test()), None)
                for entry in entries
                if entry is not None and not entry.told
            ]
            if not waited:
                return None
            if None not in waited:  # one has ended since the lock was let go: it is the one to give
                wait_any(waited, end)

    def watched(self, handle):
        """The last request of a handle, for who polls its descriptor; it is not used again for another start."""
        with self._lock:
            entry = self._entries[handle]
            entry.persistent = None
            return entry.requests[-1]

    def abandon(self, handle):
        """Gives a handle up; its tensors are held until the library has let go of them."""
        with self._lock:
            entry = self._entries.pop(handle, None)
        if entry is not None:
            self._hold(entry)


runtime = Runtime()
_ffi.find_lost = runtime.lost
atexit.register(runtime.shutdown)
os.register_at_fork(after_in_child=runtime.after_fork_in_child)
