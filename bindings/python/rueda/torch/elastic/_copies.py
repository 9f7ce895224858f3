"""Copies of a state dict's tensors, as they were at the last commit.

What only an optimizer's step changes is copied by a thread while the next batch is computed: the step waits
for it. Until then the tensors themselves are the copy. That nobody else changes them is found out first, by
comparing contents, and watched from then on.
"""

import atexit
import copy
import os
import queue
import threading
import warnings

import torch

from rueda.torch import _large_pages, _moving
from rueda.torch.memory import storage_of
from rueda.torch.elastic._streams import Streams

PROBATION = 3  # intervals between commit and step in which nothing else may have changed a tensor
_PLAIN = frozenset((int, float, bool, str, type(None)))  # what cannot be changed is its own copy
CHECK_EVERY = 50  # intervals: contents are compared again, as changes through .data have no version


class _Copier:
    """The thread that copies, begun when it is first needed. To begin one for each commit would be to wait for it."""

    def __init__(self):
        self._forget()

    def _forget(self):
        self._tasks = self._thread = None

    def do(self, task):
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._work, args=(self._tasks,), name="rueda-commit", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def end(self):
        """At exit: a thread that the end of Python finds within PyTorch aborts the process."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._thread.join()
            self._forget()

    def _work(self, tasks):
        for task in iter(tasks.get, None):
            task()


_copier = _Copier()
os.register_at_fork(after_in_child=_copier._forget)
atexit.register(_copier.end)


class _Place:
    """Where a tensor was."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


def _outline(state, tensors):
    """The state with places instead of tensors, which are put into ``tensors``; the rest is copied."""
    if isinstance(state, torch.Tensor):
        tensors.append(state.detach())
        return _Place(len(tensors) - 1)
    if isinstance(state, dict):
        return {key: _outline(value, tensors) for key, value in state.items()}
    kind = type(state)
    if kind in (list, tuple):
        return kind([_outline(value, tensors) for value in state])
    return state if kind in _PLAIN else copy.deepcopy(state)


def _filled(outline, tensors, own=_large_pages.clone):
    if isinstance(outline, _Place):
        return own(tensors[outline.index])
    if isinstance(outline, dict):
        return {key: _filled(value, tensors, own) for key, value in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)(_filled(value, tensors, own) for value in outline)
    return copy.deepcopy(outline)


def _skeleton(outline):
    """The outline without what is no tensor: where its tensors are."""
    if isinstance(outline, _Place):
        return outline.index
    if isinstance(outline, dict):
        return {key: _skeleton(value) for key, value in outline.items()}
    if type(outline) in (list, tuple):
        return [_skeleton(value) for value in outline]
    return None


def _is_like(tensor, other):
    same = tensor.layout is other.layout is torch.strided and not tensor.is_quantized
    return same and (tensor.shape, tensor.dtype, tensor.device) == (other.shape, other.dtype, other.device)


def _key(tensor):
    """Which memory it is; None for what is copied at once: a sparse one, which has several pieces, and other devices."""
    if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
        return None
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _buffer(tensor, old):
    """Memory for a copy: the old one's, where it fits."""
    if old is not None and old.layout is tensor.layout and old.shape == tensor.shape and (old.dtype, old.device) == (tensor.dtype, tensor.device):
        return old
    return _large_pages.empty_like(tensor)


def _same_bytes(left, right):
    if left.is_floating_point() or left.is_complex():  # not-a-number is equal to itself here
        return bool(((left == right) | ((left != left) & (right != right))).all())
    return torch.equal(left, right)


def _itself(tensor):
    return tensor


def _lent(tensor):
    return tensor if tensor.layout is torch.strided else tensor.clone()


def _memory(tensor):
    """That of its storage; something that no other has, where it has several or none."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return id(tensor)
    return tensor.device, storage_of(tensor).data_ptr()


class Copies:
    """One save of a state dict; `anew` makes the next. Threads: the one that trains; the copying one is inside.

    Late copies wait for `begin`, or for whoever needs them.

    Parameters
    ----------
    take : callable
        Gives the state dict; its tensors are the ones that train.
    trusted : set of keys
        Of tensors that only a step changes: they are copied late.
    room, spare : (list of tensors, list of keys)
        Memory for these copies, where it fits, and for those of the next save; and for tensors of which keys it was made.
    """

    def __init__(self, take, trusted=frozenset(), room=((), ()), spare=((), ())):
        self._take, self.trusted, self._spare = take, trusted, spare
        self._live = []
        self._outline = _outline(take(), self._live)
        self._versions = [tensor._version for tensor in self._live]
        self._keys = list(map(_key, self._live))
        self._late = [i for i, key in enumerate(self._keys) if key in trusted]
        buffers, keys = room
        if keys == self._keys and None not in keys:
            self._buffers = buffers
        else:
            self._buffers = [
                _buffer(tensor, buffers[i] if i < len(buffers) else None) for i, tensor in enumerate(self._live)
            ]
        self._error = None
        self._done = None  # is set when the late copies that were begun are there
        self._intact = True  # no late copy was taken of what had changed
        for i in set(range(len(self._live))).difference(self._late):
            self._copy(i)
        self._streams = Streams([self._live[i] for i in self._late])
        self._is_owed = bool(self._late)  # the late copies: nobody has waited for them yet

    def anew(self):
        """The save of what there is now. This one stays what it is until its `anew` is called again."""
        self.hold()
        return Copies(self._take, self.trusted, self._spare, (self._buffers, self._keys))

    def begin(self):
        """The late copies, in the copying thread."""
        if self._is_owed and self._done is None:
            self._done = threading.Event()
            _copier.do(self._copy_late)

    def prepare(self, more=()):
        """Has memory for the next save, and has it written once: that takes longer than to copy.

        ``more``: tensors like those that come behind these.
        """
        self._spare = [_buffer(tensor, None).zero_() for tensor in (*self._live, *more)], ()

    def hold(self):
        """Until all copies are there: the tensors may be changed then. False: some are not what was saved."""
        if self._is_owed:
            self.begin()
            self._done.wait()
            self._is_owed = False
            self._intact = self.untouched()
            if self._error is not None and self._intact:
                self._copy_again()
        self._streams.wait_for_copies()
        return self._intact

    def _copy_again(self):
        """What the thread has failed to copy."""
        try:
            for i in self._late:
                self._copy(i)
            self._error = None
        except Exception as error:
            self._error, self._intact = error, False
            warnings.warn(f"a commit could not be copied, and does not count: {error}", RuntimeWarning, stacklevel=3)

    def untouched(self):
        """Whether nobody has changed, since the save, what is copied late."""
        return all(self._live[i]._version == self._versions[i] for i in self._late)

    def of(self, tensors):
        """Of each tensor its copy, if it has not changed since as far as its version says; else None. After `hold`."""
        mine = self._places()
        places = (mine.get(_key(tensor)) for tensor in tensors)
        return [None if i is None or self._live[i]._version != self._versions[i] else self._buffers[i] for i in places]

    def _places(self):
        return {key: i for i, key in enumerate(self._keys)}

    def unchanged(self, tensors):
        """Of these, the keys of those that still are what they were at the save, by content."""
        mine = self._places()
        return {
            key
            for key, i in ((_key(tensor), mine.get(_key(tensor))) for tensor in tensors)
            if key is not None and i is not None and _same_bytes(self._live[i], self._buffers[i])
        }

    def state(self):
        """A state dict of its own with what was saved; the error, if it could not be copied."""
        self._require()
        return _filled(self._outline, self._buffers)

    def restore_by(self, load, in_place=False):
        """``load(state dict)``: of what was saved, without another copy of it where that can be.

        A module copies from what it is given: it gets the saved tensors, and what it should have kept of them is copied
        afterwards. ``in_place``, for an optimizer, which keeps what it is given: it gets its own tensors, filled, or, where
        they are others than at the save, copies.
        """
        self._require()
        if in_place:
            now = []
            is_same = _skeleton(_outline(self._take(), now)) == _skeleton(self._outline) and all(map(_is_like, now, self._buffers))
            if not is_same:
                load(_filled(self._outline, self._buffers))
                return
            with torch.no_grad():
                for tensor, saved in zip(now, self._buffers):
                    tensor.copy_(saved)
            load(_filled(self._outline, now, _itself))
        else:
            load(_filled(self._outline, self._buffers, _lent))
            now = []
            _outline(self._take(), now)
            kept = {_memory(tensor) for tensor in now}
            self._buffers = [_large_pages.clone(each) if _memory(each) in kept else each for each in self._buffers]
        self._versions = [tensor._version for tensor in self._live]

    def is_current(self):
        """Whether what there is now is what was saved, as far as tensors' versions say; what is no tensor is saved anew then.

        Somebody who has written to their memory without them has not changed their versions.
        """
        if self._is_owed or self._error is not None or not self._intact:
            return False
        now = []
        outline = _outline(self._take(), now)
        if _skeleton(outline) != _skeleton(self._outline) or any(_key(tensor) is None for tensor in now):
            return False
        if [(_key(each), each._version) for each in now] != [(_key(each), v) for each, v in zip(self._live, self._versions)]:
            return False
        self._outline = outline
        return True

    def _require(self):
        self.hold()
        if self._error is not None:
            raise self._error

    def _copy(self, i):
        _moving.copy(self._buffers[i], self._live[i])

    def _copy_late(self):
        try:
            with self._streams.copying():
                for i in self._late:
                    self._copy(i)
                    self._streams.use(self._live[i], self._buffers[i])
        except Exception as error:  # who waits for the copies makes them
            self._error = error
        finally:
            self._done.set()


class StepGuard:
    """Sees to it that no step of an optimizer changes what has not been copied.

    Parameters
    ----------
    optimizers : list of torch.optim.Optimizer
        Whose tensors may be copied late; without step hooks (PyTorch before 2.0) none are.
    copies : callable
        Gives the newest `Copies` of all states that may have these tensors.
    """

    def __init__(self, optimizers, copies):
        self._optimizers, self._copies = optimizers, copies
        self._clean, self._interval = 0, 0
        self._armed = False  # saved, and no step since
        self._handles = []
        if all(hasattr(each, "register_step_pre_hook") for each in optimizers):
            self._handles = [each.register_step_pre_hook(self._before_step) for each in optimizers]

    def close(self):
        """The optimizers step freely again."""
        for handle in self._handles:
            handle.remove()
        for copies in self._copies():
            copies.hold()
            copies.trusted = frozenset()

    def saved(self):
        self._armed = True

    def _before_step(self, optimizer, args, kwargs):
        if not self._armed:
            return
        self._armed = False
        self._interval += 1
        intact = all([copies.hold() and copies.untouched() for copies in self._copies()])
        if not intact:
            self._start_anew()
        elif self._clean < PROBATION or self._interval % CHECK_EVERY == 0:
            self._look()

    def _parameters(self):
        return (each for optimizer in self._optimizers for group in optimizer.param_groups for each in group["params"])

    def _tensors(self):
        yield from (parameter.detach() for parameter in self._parameters())
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                yield from (each for each in state.values() if isinstance(each, torch.Tensor))

    def _look(self):
        tensors = list(self._tensors())
        same = set().union(*(copies.unchanged(tensors) for copies in self._copies()))
        if any(_key(parameter.detach()) not in same for parameter in self._parameters()):
            self._start_anew()
            return
        self._clean += 1
        if self._clean >= PROBATION:
            for copies in self._copies():
                copies.trusted = frozenset(same)

    def _start_anew(self):
        self._clean = 0
        for copies in self._copies():
            copies.trusted = frozenset()
