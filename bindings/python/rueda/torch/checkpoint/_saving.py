"""Saves: all ranks agree, copy their shares, and go on; a thread of each writes.

    training thread                            a thread of this rank
    agree on step and names
    rank 0: lock, a new folder
    open the own file, agree that all could
    copy the own share --------------------->  write, fsync; a mark in the folder: NAME, bytes, hash
    ... trains on                              rank 0: all marks there? manifest, fsync, rename; remove old ones

No collective leaves the thread: marks are files that rank 0 looks for, as all ranks must see one folder anyway.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
import time
import warnings

import torch

from rueda.torch import _safetensors
from rueda.torch._files import replaced, write_all
from rueda.torch.checkpoint import _folder, _shares
from rueda.torch.checkpoint._ranks import Ranks, agree
from rueda.torch.checkpoint._state import Flat
from rueda.torch.sharding import _pages

_BLOCK = 16 << 20  # bytes that are hashed and written at once
_LOOK_SECONDS = 0.002, 0.1  # between two looks for marks: first, and at most
_NICE = 5  # steps of priority below the training's threads
_AFTER_END = 30.0  # seconds that a process which wants to end waits for other ranks' marks
_MARK, _FAILED = "{:05d}.written", "{:05d}.failed"

_last = None  # the save that is under way, or whose end was not told
_room = None  # the memory of the last one's copy, for the next


def save(folder, state, *, step, wait=False, keep=2, timeout=600.0):
    """Saves a state that all ranks have, each its part of it. All ranks must call it.

    Returns when this rank's part is copied: training may change the state while a thread writes it to files. If the save
    before still writes, this one waits for it first.

    Parameters
    ----------
    folder : path
        That all ranks see, of this job alone. It is made where there is none.
    state : mapping of str to anything
        Modules, optimizers, tensors, objects with ``state_dict()`` and ``load_state_dict()``, and plain values: numbers,
        strings, None, and lists, tuples, sets and dicts of them. Of what ranks may have of their own (buffers of
        modules, objects, plain values) the first rank's is saved.
    step : int
        By which a person, and `resume`, knows it.
    wait : bool
        Returns when the checkpoint is whole, on all ranks; its failure is raised here.
    keep : int or None
        So many of the newest whole checkpoints stay; older ones are removed when this one is whole. None: all stay.
    timeout : float
        Seconds that the first rank waits for the others' files.

    Raises
    ------
    ValueError, TypeError
        What cannot be saved; ranks that do not agree.
    OSError
        The folder cannot be used. BlockingIOError: another job saves there.
    RuntimeError
        Another rank could not; or the save before this one failed, which is told here. Checkpoints that were whole are.
    """
    global _last
    ranks, what = Ranks(), f"the state could not be saved to {folder}"
    folder = os.fspath(folder)
    flat = _agreed_state(ranks, folder, state, step, keep, what)
    (temporary, *_) = agree(ranks, what, lambda: _begin(folder, step) if ranks.rank == 0 else None)
    temporary = os.path.join(folder, temporary)
    under_way = _Save(ranks, folder, temporary, step, flat, float("inf") if keep is None else keep, timeout)
    try:
        agree(ranks, what, under_way.open)
    except BaseException:
        under_way.give_up()
        raise
    _last = under_way
    under_way.copy()
    if wait:
        _end(ranks)


def wait():
    """Waits until the last save has ended, on all ranks. All ranks must call it. Raises what kept it from being whole."""
    _end(Ranks())


def _end(ranks):
    agree(ranks, "the last save failed", _tell)


def _tell():
    """The end of the last save, once."""
    global _last
    last, _last = _last, None
    if last is not None:
        last.join()


def _agreed_state(ranks, folder, state, step, keep, what):
    flat = None

    def look():
        nonlocal flat
        _tell()
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step={step!r}: a whole number, 0 or more")
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ValueError(f"keep={keep!r}: a whole number, 1 or more, or None for all")
        flat = Flat(state)
        if ranks.rank != 0:
            _folder.unlock(folder)  # of one that was the first rank before
        forms = [(name, str(t.dtype), list(t.shape)) for name, t in flat.tensors.items()]
        text = json.dumps([list(flat.entries), forms]).encode()
        return [step, hashlib.blake2b(text, digest_size=8).hexdigest(), len(forms)]

    said = agree(ranks, what, look)
    for rank, theirs in enumerate(said):
        if theirs[0] != said[0][0]:
            raise ValueError(f"{what}: rank 0 says step={said[0][0]}, rank {rank} step={theirs[0]}")
        if theirs != said[0]:
            raise ValueError(
                f"{what}: ranks have different states: the names, types or shapes of rank {rank}'s {theirs[2]} tensors are "
                f"not those of rank 0's {said[0][2]}"
            )
    return flat


def _begin(folder, step):
    """Of the first rank: makes the folder that all write to, and returns its name."""
    os.makedirs(folder, exist_ok=True)
    _folder.lock(folder)
    name = f"{_folder.numbered(folder):06d}-step-{step}.new"
    _folder.remove_leftovers(folder)
    os.mkdir(os.path.join(folder, name))
    return name


class _Save:
    """One save of one rank."""

    def __init__(self, ranks, folder, temporary, step, flat, keep, timeout):
        self._ranks, self._folder, self._temporary, self._step = ranks, folder, temporary, step
        self._keep, self._timeout = keep, timeout
        self._forms = {name: (t.dtype, tuple(t.shape)) for name, t in flat.tensors.items()}
        self._plan = _shares.shares(self._forms, flat.firsts, ranks.size)
        self._flat, self._entries = flat, flat.entries
        self._own = _folder.file_of(ranks.rank, ranks.size)
        self._file, self._failure, self._is_given_up = None, None, False
        self._may_go_on = threading.Event()
        # No daemon: a process that ends waits for it. It waits already when the copy is done, since starting it takes time.
        self._thread = threading.Thread(target=self._run, name="rueda-checkpoint")
        self._thread.start()

    def open(self):
        """This rank's file."""
        path = os.path.join(self._temporary, self._own)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno, "this rank does not see what rank 0 has made: all ranks need one folder", self._temporary
            ) from None

    def copy(self):
        """This rank's share, as it will be in the file; the thread goes on from here. A failure is told as the thread's are."""
        try:
            self._copy_share()
        except Exception as error:
            self._failure = error
        finally:
            self._flat = None
            self._may_go_on.set()

    def _copy_share(self):
        parts = sorted(self._plan[self._ranks.rank], key=lambda part: -_safetensors.itemsize(self._forms[part.name][0]))
        forms = {self._name(part): self._form(part) for part in parts}
        self._header, sizes = _safetensors.header_of(forms, {"format": "pt"})
        tensors = [self._flat.tensors[part.name] for part in parts]
        on_device = any(not t.is_cpu for t in tensors)
        self._copy, at = _room_for(sum(sizes), on_device), 0
        for part, tensor, size in zip(parts, tensors, sizes):
            _copy_part(self._copy[at : at + size], part, tensor)
            at += size
        if on_device and torch.cuda.is_available():
            torch.cuda.synchronize()

    def _is_whole(self, part):
        return (part.first, part.last) == (0, torch.Size(self._forms[part.name][1]).numel())

    def _name(self, part):
        return part.name if self._is_whole(part) else f"{part.name}[{part.first}:{part.last}]"

    def _form(self, part):
        dtype, shape = self._forms[part.name]
        return dtype, shape if self._is_whole(part) else (part.last - part.first,)

    def give_up(self):
        """Before anything is written."""
        self._is_given_up = True
        self._may_go_on.set()
        self._thread.join()
        self._close()
        if self._ranks.rank == 0:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def join(self):
        self._thread.join()
        if self._failure is None:
            return
        failed = f"the save of step {self._step} to {self._folder} failed: {type(self._failure).__name__}: {self._failure}"
        if self._ranks.are_together():
            raise RuntimeError(failed) from self._failure
        warnings.warn(failed, RuntimeWarning, stacklevel=2)  # of a job that has gone on without some ranks

    def _run(self):
        with contextlib.suppress(OSError):  # who trains comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        self._may_go_on.wait()
        if self._is_given_up:
            return
        try:
            if self._failure is not None:
                raise self._failure
            entry = self._write()
            if self._ranks.rank == 0:
                self._finish([entry, *self._others()])
            else:
                self._mark(_MARK, entry)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error):
        self._failure = error
        self._close()
        with contextlib.suppress(OSError):
            if self._ranks.rank == 0:
                shutil.rmtree(self._temporary)
            else:
                self._tell_failure(error)
        if not threading.main_thread().is_alive():  # nobody will ask
            print(f"rueda: step {self._step} was not saved to {self._folder}: {error}", file=sys.stderr, flush=True)

    def _write(self):
        """This rank's file, on disk; what the manifest says of it."""
        digest, at = _folder.hash_of_nothing(), 0
        data = memoryview(self._copy.numpy())
        for block in (memoryview(self._header), *(data[n : n + _BLOCK] for n in range(0, len(data), _BLOCK))):
            digest.update(block)
            write_all(self._file, block, at)
            at += len(block)
        os.fsync(self._file)
        self._close()
        _folder.sync_folder(self._temporary)
        return {"name": self._own, "bytes": at, "blake2b": digest.hexdigest()}

    def _close(self):
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _mark(self, form, said):
        """A file for the first rank to find; it need not outlive the system."""
        path = os.path.join(self._temporary, form.format(self._ranks.rank))
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(said, file)
        os.replace(path + ".new", path)

    def _tell_failure(self, error):
        try:
            self._mark(_FAILED, f"{type(error).__name__}: {error}")
        except OSError:  # a full disk has room for another name still
            os.replace(os.path.join(self._temporary, self._own), os.path.join(self._temporary, _FAILED.format(self._ranks.rank)))

    def _others(self):
        """What the other ranks' marks say, when all are there."""
        missing, found, pause = set(range(1, self._ranks.size)), {}, _LOOK_SECONDS[0]
        end = time.monotonic() + self._timeout
        while True:
            names = set(os.listdir(self._temporary))
            for rank in sorted(missing):
                if _FAILED.format(rank) in names:
                    raise RuntimeError(f"rank {rank} failed: {self._why(rank)}")
                if _MARK.format(rank) in names:
                    found[rank] = self._said(_MARK, rank)
                    missing.remove(rank)
            if not missing:
                return [found[rank] for rank in sorted(found)]
            self._require_hope(missing, end)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS[1])

    def _require_hope(self, missing, end):
        now, names = time.monotonic(), ", ".join(map(str, sorted(missing)))
        if not self._ranks.are_together() and threading.main_thread().is_alive():
            raise RuntimeError(f"the job's ranks have changed, and ranks {names} had not written their parts")
        if not threading.main_thread().is_alive():
            self._ended = getattr(self, "_ended", now)
            end = min(end, self._ended + _AFTER_END)
        if now >= end:
            raise TimeoutError(f"ranks {names} have not written their parts within {self._timeout:g} s (timeout=)")

    def _why(self, rank):
        try:
            return self._said(_FAILED, rank)
        except (OSError, ValueError):
            return "it could not even write why"

    def _said(self, form, rank):
        path = os.path.join(self._temporary, form.format(rank))
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
        os.unlink(path)
        return said

    def _finish(self, files):
        """Of the first rank: makes it a checkpoint."""
        pieces = {name: [] for name in self._forms}
        for file, parts in enumerate(self._plan):
            for part in parts:
                pieces[part.name].append([file, part.first, part.last])
        tensors = {
            name: {"dtype": _safetensors.dtype_name(dtype), "shape": list(shape), "pieces": pieces[name]}
            for name, (dtype, shape) in self._forms.items()
        }
        about = {"format": _folder.FORMAT, "version": _folder.VERSION, "step": self._step}
        manifest = {**about, "files": files, "tensors": tensors, "state": self._entries}
        with replaced(os.path.join(self._temporary, _folder.MANIFEST)) as new:
            with open(new, "w", encoding="utf-8") as file:
                file.write(_folder.text_of(manifest))
        _folder.sync_folder(self._temporary)
        os.rename(self._temporary, self._temporary[: -len(".new")])
        _folder.sync_folder(self._folder)  # before older ones go
        _folder.remove_old(self._folder, self._keep)


def _copy_part(target, part, tensor):
    target = target.view(tensor.dtype)
    if part.last - part.first == tensor.numel():
        target.view(tensor.shape).copy_(tensor, non_blocking=True)
    else:
        target.copy_(tensor.reshape(-1)[part.first : part.last], non_blocking=True)


def _room_for(nbytes, on_device):
    """Memory for a copy: that of the save before if it is large enough, since new memory costs more than the copy."""
    global _room
    if _room is None or _room.numel() < nbytes:
        _room = None
        pinned = on_device and torch.cuda.is_available()
        _room = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) if pinned else _pages.flat(nbytes, torch.uint8)
    return _room[:nbytes]
