"""The folder of a job's checkpoints.

    lock                            held by the process that saves there
    000007-step-1200/               a checkpoint that is whole: its number counts saves
        manifest.json               what is in it: the last file of it
        state-00001-of-00002.safetensors
        state-00002-of-00002.safetensors
    000008-step-1300.new/           one that is being written, or whose writers were killed
    000005-step-1000.old/           one that is being removed
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import warnings

MANIFEST = "manifest.json"
FORMAT, VERSION = "rueda checkpoint", 1
_NAME = re.compile(r"(\d{6,})-step-(\d+)(\.new|\.old)?")
_LOCK = "lock"
_PF_EXITING = 4  # of a process's flags in Linux
_ENDING_SECONDS = 10.0  # that it may take to let go of its locks


class Damaged(ValueError):
    """A checkpoint that is not as it was written; the message names what is wrong."""


class Checkpoint(os.PathLike):
    """A whole checkpoint: its path, and the step that it was saved with."""

    def __init__(self, path, step):
        self.path, self.step = os.fspath(path), step

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"Checkpoint({self.path!r}, step={self.step})"


def file_of(rank, ranks):
    return f"state-{rank + 1:05d}-of-{ranks:05d}.safetensors"


def hash_of_nothing():
    return hashlib.blake2b(digest_size=16)


def listed(folder):
    """[(number, step, name)] of what has a checkpoint's name, newest first; [] where there is no folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [(int(m[1]), int(m[2]), name) for name in names for m in [_NAME.fullmatch(name)] if m and not m[3]]
    return sorted(found, reverse=True)


def numbered(folder):
    """A number above all that were given."""
    return max((int(m[1]) for m in map(_NAME.fullmatch, os.listdir(folder)) if m), default=0) + 1


def text_of(manifest):
    body = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
    return f'{{"blake2b":"{_digest(body)}","manifest":{body}}}\n'


def _digest(body):
    digest = hash_of_nothing()
    digest.update(body.encode())
    return digest.hexdigest()


def manifest_of(path):
    """Of a checkpoint whose files are there and have their sizes. Damaged: says why it is none."""
    place = os.path.join(path, MANIFEST)
    try:
        with open(place, encoding="utf-8") as file:
            text = json.load(file)
        manifest = text["manifest"]
        body = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
        if text["blake2b"] != _digest(body):
            raise Damaged(f"{place} has changed since it was written")
        if manifest["format"] != FORMAT:
            raise Damaged(f"{place} is of no checkpoint")
    except FileNotFoundError:
        raise Damaged(f"{path} has no {MANIFEST}") from None
    except NotADirectoryError:
        raise Damaged(f"{path} is no folder") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"{place} cannot be read: {error!r}") from error
    if manifest["version"] != VERSION:
        raise ValueError(f"{place} has version {manifest['version']}; this rueda reads version {VERSION}")
    for file in manifest["files"]:
        _require_file(os.path.join(path, file["name"]), file["bytes"])
    return manifest


def _require_file(path, expected):
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    if size != expected:
        raise Damaged(f"{path} has {size} bytes of {expected}")


def damage_of(folder, name):
    """None if a checkpoint looks whole; what its files say is compared when it is loaded."""
    try:
        manifest_of(os.path.join(folder, name))
        return None
    except Damaged as error:
        return str(error)


def _looks_whole(folder, name):
    try:
        return damage_of(folder, name) is None
    except ValueError:
        return True  # of another version


def remove_old(folder, keep):
    """All that are older than the newest ``keep`` that look whole. What cannot be removed stays."""
    whole = 0
    for _, _, name in listed(folder):
        if whole >= keep:
            _remove(folder, name)
        with contextlib.suppress(OSError):
            whole += _looks_whole(folder, name)


def remove_leftovers(folder):
    """Of saves and removals that were killed. Only who has the lock."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match and match[3]:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _remove(folder, name):
    with contextlib.suppress(OSError):
        old = os.path.join(folder, name + ".old")
        os.rename(os.path.join(folder, name), old)
        shutil.rmtree(old, ignore_errors=True)


def sync_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_locks = {}  # (process, folder): open file


def lock(folder):
    """Keeps other jobs from saving there, until `unlock` or the end of this process. BlockingIOError names who does."""
    key, path = (os.getpid(), os.path.realpath(folder)), os.path.join(folder, _LOCK)
    held = _locks.get(key)
    if held is not None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(held)):
                return
        unlock(folder)  # the folder was removed, and made again
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take_lock(file)
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} of {os.uname().nodename}".encode(), 0)
    except OSError as error:
        who = _holder(file) or "another process"
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            raise BlockingIOError(
                error.errno, f"{who} saves checkpoints there, which is of another job: give each job a folder of its own", folder
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            os.close(file)
            raise
        warnings.warn(f"{folder} is on a filesystem without locks: see to it that no other job saves there", stacklevel=2)
    _locks[key] = file


def _take_lock(file):
    end = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN) or not _is_ending(_holder(file)) or time.monotonic() > end:
                raise
        time.sleep(0.001)


def _holder(file):
    """As it calls itself."""
    return os.pread(file, 200, 0).decode(errors="replace")


def _is_ending(holder):
    """Whether it is a process of this machine that ends, or has: what it holds is about to be free."""
    match = re.fullmatch(r"process (\d+) of (.*)", holder)
    if match is None or match[2] != os.uname().nodename:
        return False
    try:
        with open(f"/proc/{match[1]}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or int(fields[6]) & _PF_EXITING != 0


def unlock(folder):
    file = _locks.pop((os.getpid(), os.path.realpath(folder)), None)
    if file is not None:
        os.close(file)
