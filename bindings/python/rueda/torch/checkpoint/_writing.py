"""One save of one rank: the file that it opens, the copy of its share, and the thread that writes it behind training."""

import contextlib
import os
import shutil
import threading
import warnings

from rueda.torch import _safetensors
from rueda.torch._files import replaced, write_all
from rueda.torch.checkpoint import _copying, _folder, _marks

_BLOCK = 16 << 20  # bytes that are hashed and written at once
_NICE = 5  # steps of priority below the training's threads


class Writing:
    """Begins with `open`, then either `copy` or `give_up`, then `join` in the end."""

    def __init__(self, ranks, folder, temporary, step, flat, layout, keep, timeout):
        self._ranks, self._folder, self._temporary, self._step = ranks, folder, temporary, step
        self._keep, self._timeout = keep, timeout
        self._layout, self._tensors, self._entries = layout, flat.tensors, flat.entries
        self._own = _folder.file_of(ranks.rank, ranks.size)
        self._file, self._failure, self._is_given_up = None, None, False
        self._may_go_on = threading.Event()
        # No daemon: a process that ends waits for it.
        self._thread = threading.Thread(target=self._run, name="rueda-checkpoint")

    def open(self):
        """This rank's file. The thread waits already when the copy is done, since starting it takes time."""
        self._thread.start()
        path = os.path.join(self._temporary, self._own)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno, "this rank does not see what rank 0 has made: all ranks need one folder", self._temporary
            ) from None

    def copy(self):
        """This rank's share; the thread goes on from here. A failure is told as the thread's are."""
        try:
            self._copy = _copying.copied(self._layout, self._tensors)
        except BaseException as error:  # what was interrupted is half a copy
            self._failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            # Before the thread goes on: freeing tensors lets go of the interpreter's lock, and who has it next may keep this
            # thread from its processor for milliseconds.
            self._tensors.clear()
            self._may_go_on.set()

    def give_up(self):
        """Before anything is written."""
        self._is_given_up = True
        self._may_go_on.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._close()
        if self._ranks.rank == 0:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def is_under_way(self):
        return self._thread.is_alive()

    def join(self):
        self._thread.join()

    def failed(self):
        """Of one that has ended: what kept it from being whole, or None."""
        if self._failure is None:
            return None
        return f"the save of step {self._step} to {self._folder} failed: {type(self._failure).__name__}: {self._failure}"

    def tell(self):
        """Of one that has ended: raises what kept it from being whole."""
        failed = self.failed()
        if failed is None:
            return
        if not self._ranks.have_changed():
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
                self._finish([entry, *_marks.others(self._temporary, self._ranks, self._timeout)])
            else:
                _marks.written(self._temporary, self._ranks.rank, entry)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error):
        self._failure = error
        self._close()
        with contextlib.suppress(OSError):
            if self._ranks.rank == 0:
                shutil.rmtree(self._temporary)
            else:
                _marks.failed(self._temporary, self._ranks.rank, error, self._own)

    def _write(self):
        """This rank's file, on disk; what the manifest says of it."""
        digest, at = _folder.hash_of_nothing(), 0
        data = memoryview(self._copy.numpy())
        for block in (memoryview(self._layout.header), *(data[n : n + _BLOCK] for n in range(0, len(data), _BLOCK))):
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

    def _finish(self, files):
        """Of the first rank: makes it a checkpoint."""
        pieces = {name: [] for name in self._layout.forms}
        for file, parts in enumerate(self._layout.plan):
            for part in parts:
                pieces[part.name].append([file, part.first, part.last])
        tensors = {
            name: {"dtype": _safetensors.dtype_name(dtype), "shape": list(shape), "pieces": pieces[name]}
            for name, (dtype, shape) in self._layout.forms.items()
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
