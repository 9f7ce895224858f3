"""This process's membership in its job, and the table of operations that have not been collected.

The only process-wide state of rueda lives here: one `Runtime`, because Horovod's functions take no
context. What it promises:

* Tensors and names given to `submit` are held until the library has let go of them, also when the
  caller drops the handle, runs into a deadline or is interrupted.
* Threads: every method may be called from any thread. A wait holds no lock. Another thread may shut
  down at any time: what is under way then ends with an error.
* A forked child is "not initialised": it inherits neither the context nor the handles, and never
  touches the parent's library objects. It still knows the parent's place, so that a data loader's worker
  can take its rank's share.
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
import sys
import threading
import time
import weakref

from rueda import _ffi, _marks, _stacks
from rueda._context import Context
from rueda._forms import Form
from rueda._requests import GO_ON, SLICE, Request, wait_any
from rueda._epochs import read_epoch, rewrite_environment
from rueda.common.exceptions import (
    DeadlineExceeded,
    HorovodInternalError,
    RankLostError,
    RemovedError,
    WrongCallError,
)

_lib = _ffi.library
_start, _run = _lib.rueda_request_start, _lib.rueda_request_run
_OK, _ABORTED = _ffi.OK, _ffi.ABORTED

# Operations that are remembered by name and form, beside the gradients of optimizers; those used longest ago are
# forgotten first.
_MOST_PERSISTENT = 4096


def _self():
    """What messages call the runtime: scripts that import horovod compare them with Horovod's."""
    return "Horovod" if "horovod" in sys.modules else "rueda"


def _not_initialized():
    return f"{_self()} has not been initialized; use hvd.init()."


Operation = collections.namedtuple(
    "Operation",
    "kind dtype input output shape reduce_op root peer tag splits prescale postscale process_set "
    "device stream rows",
    defaults=(_ffi.FLOAT32, None, None, (), _ffi.SUM, 0, 0, 0, (), 1.0, 1.0, 0, -1, None, -1),
)
Operation.__doc__ = "One rueda_op without its name; input and output are addresses."

Place = collections.namedtuple(
    "Place", "rank size local_rank local_size cross_rank cross_size is_homogeneous"
)


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


def _is_real(name):
    """Of a number among the stats."""
    return "seconds" in name or name.endswith("_share")


def member_name(name, i):
    """Of the i-th tensor of a named group. The first has the group's own: as many tensors as another rank may give, they meet."""
    return f"{name}[{i}]" if i else name


class Runtime:
    """The process's default context. One instance, at the end of this file."""

    def __init__(self):
        self._forget()

    def _forget(self):
        # Reentrant, because a signal handler or finaliser may call in while this thread holds them.
        self._joining = threading.RLock()  # held while this process joins or leaves
        self._lock = threading.RLock()  # of the tables, never held for long
        self._context = None
        self._users = set()
        self.before_leaving = weakref.WeakSet()  # whose finish() waits for what is under way
        self.on_new_epoch = []  # called without arguments when this process has entered the next epoch
        self.on_entering = []  # the same, and when it has joined a job
        self._epoch = None
        self._place = None
        self._was_shut_down = False
        self._moving = None  # the context from which a thread goes into the next epoch
        self._forked_from = None  # the rank whose child this process is
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

    # Life cycle.

    def init(self, options=None, user="hvd"):
        """Joins the job, as an `_abi.InitOptions` says. Does nothing when already joined.

        ``user``: who uses the context from now on; it is left when the last of them shuts down.
        """
        with self._joining:
            if self._context is not None:
                self._users.add(user)
                return
            pointer, error, code = ctypes.c_void_p(), _ffi.Error(), _ffi.ABORTED
            while code == _ffi.ABORTED:  # a signal came; Python has run its handlers
                code = _lib.rueda_init(options, ctypes.byref(pointer), ctypes.byref(error))
            if code != _ffi.OK:
                failed = _ffi.exception(code, error)
                message = str(failed)
                if self._forked_from is not None:
                    message = (
                        f"this process was forked from rank {self._forked_from}, and cannot be a rank of its own "
                        f"({message}). rank() and size() work here without init(); collectives are for the rank itself"
                    )
                kind = RankLostError if isinstance(failed, RankLostError) else WrongCallError
                raised = kind(f"{_self()} initialization failed: {message}")
                raised.__dict__.update(failed.__dict__)
                raise raised
            self._enter(Context(pointer.value), {user})
        for tell in list(self.on_entering):
            tell()

    def _enter(self, context, users):
        place = Place(
            *(getattr(_lib, "rueda_" + field)(context) for field in Place._fields[:-1]),
            is_homogeneous=_lib.rueda_is_homogeneous(context) != 0,
        )
        epoch = read_epoch(context)
        with self._lock:
            self._clear_handles()
            self._let_go()
            self._place = place
            self._epoch = epoch
            self._context = context
            self._users = users
        if epoch is None or not epoch.provisional:
            _stacks.show(context)
            _marks.follow(context)

    @property
    def epoch(self):
        """The `Epoch` that this process is in; None where no launcher decides epochs, or before init."""
        return self._epoch

    def next_epoch(self, cause, has_state=False, commits=0, layout=b"", mirrors=()):
        """Leaves this epoch and enters the next one, as a `rueda_standing` says; waits until it is decided.

        Handles of the old epoch have ended, as after a shutdown. RemovedError, which is SystemExit with code 0,
        where the job goes on without this process.
        """
        with self._joining:
            previous = self.require_context()
            with self._lock:
                users = self._users
            for each in list(self.before_leaving):
                each.finish()
            with self._lock:
                self._persistent.clear()
                self._persistent = collections.OrderedDict()  # what is in use goes back to the other
            _marks.follow(None)
            digest = ctypes.create_string_buffer(layout, len(layout))
            copies = (ctypes.c_uint64 * max(len(mirrors), 1))(*mirrors)
            standing = _ffi.Standing(
                ctypes.sizeof(_ffi.Standing), cause, bool(has_state), commits, ctypes.addressof(digest), len(layout),
                copies, len(mirrors),
            )
            pointer, error, code = ctypes.c_void_p(), _ffi.Error(), _ABORTED
            self._moving = previous
            try:
                while code == _ABORTED:  # a signal came; Python has run its handlers
                    code = _lib.rueda_next_epoch(
                        previous, ctypes.byref(standing), ctypes.byref(pointer), ctypes.byref(error)
                    )
            finally:
                self._moving = None
            if code != _OK:
                with self._lock:
                    self._context = self._place = self._epoch = None
                    self._users = set()
                    self._was_shut_down = True
                self._let_go()
                if code == _ffi.CANCELLED:
                    raise RemovedError(error.message.decode("utf-8", "replace"))
                raise _ffi.exception(code, error)
            self._enter(Context(pointer.value), users)
            rewrite_environment(self._place)
        for tell in [*self.on_new_epoch, *self.on_entering]:
            tell()

    def announced(self):
        """The newest announcement that members are about to change (rueda_announced); 0: none. Looks at memory."""
        context = self._context
        return 0 if context is None else _lib.rueda_announced(context)

    def commit_vote(self):
        """The newest announcement that any rank has seen. Collective: when it returns all ranks have called it."""
        return self._agreed(_lib.rueda_commit_vote, ctypes.c_uint64())

    def _agreed(self, vote, answer):
        """What a vote of all ranks gives. HorovodInternalError when not initialised, or as operations fail."""
        context, code = self.require_context(), _ABORTED
        while code == _ABORTED:  # a signal came; Python has run its handlers
            error = _ffi.Error()
            code = vote(context, ctypes.byref(answer), ctypes.byref(error))
        if code != _OK:
            raise _ffi.exception(code, error)
        return answer.value

    def largest(self, name, number):
        """The largest of all ranks' numbers, of 63 bits. Collective."""
        memory = ctypes.c_int64(number)
        address = ctypes.addressof(memory)
        operation = Operation(_ffi.ALLREDUCE, _ffi.INT64, address, address, (1,), _ffi.MAX)
        return self.complete("allreduce", name, [operation], memory, lambda requests: memory.value)

    def epoch_ended(self, seconds):
        """After an error: whether the epoch is over because of a loss; waits while one is suspected."""
        context = self._context
        return context is not None and _lib.rueda_epoch_ended(context, int(seconds * 1e9)) != 0

    def shutdown(self, user=None):
        """Leaves the job; operations in flight end with an error. Does nothing when not joined.

        ``user``: who is done with it; while others use it nothing happens. None: all are. Returns whether
        nobody is in the job any more.
        """
        with self._lock:
            moving = None if user is not None and self._users - {user} else self._moving
        if moving is not None:
            _lib.rueda_shutdown(moving)  # another thread waits for the next epoch, for as long as it takes
        with self._joining:
            with self._lock:
                self._users.discard(user)
                if user is not None and self._users:
                    return False
            for each in list(self.before_leaving):
                each.finish()
            with self._lock:
                context, self._context, self._place = self._context, None, None
                self._epoch = None
                self._users = set()
                if context is None:
                    return True
                self._was_shut_down = True
                self._persistent.clear()
                self._persistent = collections.OrderedDict()  # what is in use goes back to the other
            _marks.follow(None)
            _lib.rueda_shutdown(context)
            # Everything has ended: nobody else writes to the tensors any more. Handles stay
            # until the next init, so that a waiting thread learns how its operation ended.
            self._let_go()
        return True

    def after_fork_in_child(self):
        place, forked_from = self._place, self._forked_from
        self._forget()
        self._place = place
        self._forked_from = forked_from if place is None else place.rank
        _marks.follow(None)

    def is_initialized(self):
        return self._context is not None

    @property
    def place(self):
        """Rank, size and so on, in a forked child the parent's; ValueError when not initialised."""
        place = self._place
        if place is None:
            raise ValueError(_not_initialized())
        return place

    _stats = []  # name and type of each

    def counter(self, name):
        context = self.require_context()
        value = _lib.rueda_counter(context, name.encode())
        if value < 0:  # there is none, or another thread has shut down
            self._require_same(context)
        return value

    def counters(self):
        """All of them, by name."""
        context = self.require_context()
        values = (ctypes.c_int64 * max(0, _lib.rueda_counters(context, None, 0)))()
        if _lib.rueda_counters(context, values, len(values)) != len(values):
            self._require_same(context)
        return {_lib.rueda_counter_name(i).decode(): value for i, value in enumerate(values)}

    def stats(self, reset):
        """`rueda.stats` of this rank."""
        context = self.require_context()
        ranks, seconds = (ctypes.c_int32 * 64)(), (ctypes.c_double * 64)()
        late = _lib.rueda_late_ranks(context, ranks, seconds, 64)
        values, transport = (_ffi.Stat * 64)(), _lib.rueda_transport(context)
        count = _lib.rueda_stats(context, values, len(values), reset)
        if count < 0 or transport is None:
            self._require_same(context)
        if len(self._stats) != count:
            names = [values[i].name.decode() for i in range(count)]
            self._stats = [(name, float if _is_real(name) else int) for name in names]
        found = {name: number(values[i].value) for i, (name, number) in enumerate(self._stats)}
        found["late_ranks"] = {ranks[i]: seconds[i] for i in range(max(0, late))}
        found["transport"] = transport.decode()
        return found

    def lost(self, rank=-1):
        """The `_ffi.Lost` of the rank that was lost first, or None.

        ``rank``: whom an error is about; what is known of it where there is no verdict yet.
        """
        context, lost = self._context, _ffi.Lost()
        lost.rank = rank
        if context is None or not _lib.rueda_lost_rank(context, ctypes.byref(lost)):
            return None
        return lost

    def should_stop(self):
        """Collective. HorovodInternalError when not initialised, or as operations fail."""
        return self._agreed(_lib.rueda_should_stop, ctypes.c_int32()) != 0

    def start_timeline(self, path, mark_cycles):
        """ValueError when not initialised, or when the file cannot be written."""
        name, error = os.fsencode(path), _ffi.Error()
        if b"\0" in name:
            raise ValueError(f"the timeline's file name has a zero byte: {path!r}")
        context = self._initialized_context()
        code = _lib.rueda_start_timeline(
            context, name, 1 if mark_cycles else 0, ctypes.byref(error)
        )
        self._follow(context)
        if code != _ffi.OK:
            raise ValueError(error.message.decode("utf-8", "replace"))

    def stop_timeline(self):
        """ValueError when not initialised."""
        context = self._initialized_context()
        _lib.rueda_stop_timeline(context, None)
        self._follow(context)

    def _follow(self, context):
        with self._joining:
            if context is self._context:  # else another thread has shut down
                _marks.follow(context)

    def int8(self, what, source, target, blocks, device, stream):
        """Gives ``what``, "quantize" or "dequantize", to a GPU's stream; False: there are no kernels."""
        error = _ffi.Error()
        code = getattr(_lib, "rueda_int8_" + what)(
            self.require_context(), source, target, blocks, device, stream, ctypes.byref(error)
        )
        if code not in (_ffi.OK, _ffi.UNIMPLEMENTED):
            raise _ffi.exception(code, error)
        return code == _ffi.OK

    def open_cuda_pool(self, device):
        """From now on `rueda_cuda_pool_allocate` gives memory of a GPU. NotImplementedError: NCCL gives none."""
        error = _ffi.Error()
        code = _lib.rueda_cuda_pool_open(self.require_context(), device, ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)

    def allocate(self, nbytes, zeroed=True):
        """Address of memory that this host's ranks share; `rueda._heap` gives it back.

        MemoryError says how much is in use.
        """
        address, error = ctypes.c_void_p(), _ffi.Error()
        context = self.require_context()
        allocate = _lib.rueda_alloc if zeroed else _lib.rueda_alloc_uncleared
        code = allocate(context, nbytes, ctypes.byref(address), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        return address.value

    def change_process_sets(self, function, *arguments):
        """Adds or removes a process set with all other ranks; gives the new one's id."""
        pointer, error = ctypes.c_void_p(), _ffi.Error()
        context = self.require_context()
        code = function(context, *arguments, context.site(), ctypes.byref(pointer), ctypes.byref(error))
        if code != _ffi.OK:
            raise _ffi.exception(code, error)
        request = Request(pointer.value)
        request.wait()
        return request.result()

    def process_sets(self):
        """{id: ranks} of all process sets; ValueError when not initialised."""
        size, context = self.place.size, self._initialized_context()
        count = _lib.rueda_process_sets(context, None, 0)
        ids = (ctypes.c_int32 * max(0, count))()
        count = min(count, _lib.rueda_process_sets(context, ids, len(ids)))
        found = {}
        for set_id in ids[: max(0, count)]:
            ranks = (ctypes.c_int32 * size)()
            members = _lib.rueda_process_set_ranks(context, set_id, ranks, size)
            if members >= 0:
                found[set_id] = ranks[:members]
        if not found:  # there is a global one, but for who has left
            raise ValueError(_not_initialized())
        return found

    def forget_process_set(self, set_id, key):
        """What was remembered and counted for a process set that is no more."""
        with self._lock:
            for persistent in [k for k in list(self._persistent) if k[-1] is key]:
                self._persistent.pop(persistent, None)

    def require_context(self):
        """The `Context`; HorovodInternalError when not initialised."""
        context = self._context
        if context is None:
            if self._forked_from is not None:
                raise HorovodInternalError(
                    f"{_self()} has not been initialized in this process, which was forked from rank "
                    f"{self._forked_from}: only rank(), size() and the like work here."
                )
            was = "been shut down and has " if self._was_shut_down else ""
            raise HorovodInternalError(f"{_self()} has {was}not been initialized; use hvd.init().")
        return context

    def _initialized_context(self):
        """The `Context`; ValueError when not initialised."""
        context = self._context
        if context is None:
            raise ValueError(_not_initialized())
        return context

    def _require_same(self, context):
        """HorovodInternalError if another thread has left the context's job."""
        if self.require_context() is not context:
            raise HorovodInternalError(f"{_self()} has been shut down while it was asked.")

    def require_running(self):
        """Place of a running runtime; HorovodInternalError otherwise (what operations raise)."""
        self.require_context()
        place = self._place
        if place is None:  # another thread is shutting down
            raise HorovodInternalError(f"{_self()} has been shut down.")
        return place

    # Operations.

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
        structs = (_ffi.Op * count)(*(_struct(*each, site) for each in zip(operations, names)))
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
        cache[key] = Form(context, _struct(operation, name), cache, key)
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
        pointer, struct = ctypes.c_void_p(), _struct(operation, name, context.site())
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
                    raise HorovodInternalError(f"{_self()} has been shut down since this was started.")
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


def _encoded(name):
    if not isinstance(name, str):
        raise TypeError(f"an operation's name must be a string, not {type(name).__name__}: {name!r}")
    return name.encode()


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
        None if name is None else _encoded(name),
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
        operation.rows,
    )


runtime = Runtime()
_ffi.find_lost = runtime.lost
atexit.register(runtime.shutdown)
os.register_at_fork(after_in_child=runtime.after_fork_in_child)
