"""This process's membership in its job: it joins, enters epochs, votes, leaves, and may be forked.

* Threads: every method may be called from any thread. Another thread may shut down at any time.
* A forked child is "not initialised": it inherits no context and never touches the parent's library objects. It
  still knows the parent's place, so that a data loader's worker can take its rank's share.
"""

import collections
import ctypes
import sys
import threading
import weakref

from rueda import _ffi, _marks, _stacks
from rueda._context import Context
from rueda._epochs import read_epoch, rewrite_environment
from rueda.common.exceptions import HorovodInternalError, RankLostError, RemovedError, WrongCallError

_lib = _ffi.library
_OK, _ABORTED = _ffi.OK, _ffi.ABORTED

Place = collections.namedtuple(
    "Place", "rank size local_rank local_size cross_rank cross_size is_homogeneous"
)


def own_name():
    """What messages call the runtime: scripts that import horovod compare them with Horovod's."""
    return "Horovod" if "horovod" in sys.modules else "rueda"


def not_initialized():
    return f"{own_name()} has not been initialized; use hvd.init()."


class Membership:
    """Of one process. Who derives from it has operations, and is told by the three methods below."""

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

    def _begin_operations(self):
        """With the lock held: of another job or epoch from now on."""

    def _end_operations(self):
        """With the lock held: of this job or epoch no more begin."""

    def _let_go(self):
        """Operations may have ended."""

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
                raised = kind(f"{own_name()} initialization failed: {message}")
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
            self._begin_operations()
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
                self._end_operations()
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

    def should_stop(self):
        """Collective. HorovodInternalError when not initialised, or as operations fail."""
        return self._agreed(_lib.rueda_should_stop, ctypes.c_int32()) != 0

    def _agreed(self, vote, answer):
        """What a vote of all ranks gives. HorovodInternalError when not initialised, or as operations fail."""
        context, code = self.require_context(), _ABORTED
        while code == _ABORTED:  # a signal came; Python has run its handlers
            error = _ffi.Error()
            code = vote(context, ctypes.byref(answer), ctypes.byref(error))
        if code != _OK:
            raise _ffi.exception(code, error)
        return answer.value

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
                self._end_operations()
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
            raise ValueError(not_initialized())
        return place

    def require_context(self):
        """The `Context`; HorovodInternalError when not initialised."""
        context = self._context
        if context is None:
            if self._forked_from is not None:
                raise HorovodInternalError(
                    f"{own_name()} has not been initialized in this process, which was forked from rank "
                    f"{self._forked_from}: only rank(), size() and the like work here."
                )
            was = "been shut down and has " if self._was_shut_down else ""
            raise HorovodInternalError(f"{own_name()} has {was}not been initialized; use hvd.init().")
        return context

    def _initialized_context(self):
        """The `Context`; ValueError when not initialised."""
        context = self._context
        if context is None:
            raise ValueError(not_initialized())
        return context

    def require_running(self):
        """Place of a running runtime; HorovodInternalError otherwise (what operations raise)."""
        self.require_context()
        place = self._place
        if place is None:  # another thread is shutting down
            raise HorovodInternalError(f"{own_name()} has been shut down.")
        return place
