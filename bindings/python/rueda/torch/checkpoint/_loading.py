"""Loads: everything is read and compared with its hash before anything of the state is touched."""

import os
import struct
import warnings

import torch

from rueda.torch import _safetensors
from rueda.torch._files import read_all
from rueda.torch.checkpoint import _folder, _tree
from rueda.torch.checkpoint._folder import Checkpoint, Damaged
from rueda.torch.checkpoint._ranks import Ranks, agree, short
from rueda.torch.checkpoint._state import mismatches, put

_BLOCK = 16 << 20  # bytes that are read and hashed at once


def latest(folder):
    """The newest whole `Checkpoint` in a folder, or None. Of those that are damaged a warning says how.

    All their files are there, with their sizes; whether they have changed is seen when they are loaded.
    """
    folder = os.fspath(folder)
    for _, step, name in _folder.listed(folder):
        damage = _folder.damage_of(folder, name)
        if damage is None:
            return Checkpoint(os.path.join(folder, name), step)
        _warn(damage, 3)
    return None


def load(source, state):
    """Loads a checkpoint into a state, on this rank. Returns its step.

    No other rank takes part, but for models whose parameters are sharded: then all must call it.

    Parameters
    ----------
    source : path or Checkpoint
        Of a checkpoint, or of a folder of them, of which the newest whole one is loaded.
    state : mapping of str to anything
        As it was saved, by any number of ranks, or some of its names. Modules, optimizers, tensors and objects
        get their values; plain values replace those in the mapping.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is damaged; or names, types or shapes differ, all of which are named. The state is as it was, after any error.
    """
    path = os.fspath(source)
    if not os.path.exists(os.path.join(path, _folder.MANIFEST)) and _folder.listed(path):
        found = latest(path)
        if found is None:
            raise Damaged(f"no checkpoint in {path} is whole")
        path = found.path
    elif not os.path.isdir(path) or not _is_checkpoint(path):
        raise FileNotFoundError(f"{path} is no checkpoint, nor a folder with one")
    manifest, tensors = read(path, state)
    put(manifest["state"], tensors, state)
    return manifest["step"]


def _is_checkpoint(path):
    return os.path.exists(os.path.join(path, _folder.MANIFEST)) or any(
        name.startswith("state-") for name in os.listdir(path)
    )


def resume(folder, state):
    """Loads the newest checkpoint that is whole on all ranks, which must all call it. Returns its step; None: there is none.

    Damaged ones are passed over with a warning.

    Raises
    ------
    RuntimeError
        There are checkpoints, and none is whole: going on from nothing has to be somebody's decision.
    ValueError
        Names, types or shapes differ, all of which are named.
    """
    return resume_on(Ranks(), folder, state)


def resume_on(ranks, folder, state):
    folder = os.fspath(folder)
    what, damages = f"the state could not be loaded from {folder}", []
    candidates = [name for _, _, name in _folder.listed(folder)] if ranks.rank == 0 else []
    while True:
        (name, *_) = agree(ranks, what, lambda: candidates.pop(0) if candidates else None)
        if name is None:
            break
        found = _Reading(os.path.join(folder, name), state)
        failed = [(rank, each) for rank, each in enumerate(agree(ranks, what, found.read)) if each is not None]
        if not failed:
            agree(ranks, what, found.put)
            return found.manifest["step"]
        damages.append(f"{failed[0][1]} (rank {failed[0][0]})" if ranks.size > 1 else failed[0][1])
        _warn(damages[-1], 4)
    if damages:
        raise RuntimeError(f"no checkpoint in {folder} is whole: {'; '.join(damages)}. To begin anew, use another folder")
    return None


class _Reading:
    def __init__(self, path, state):
        self._path, self._state = path, state

    def read(self):
        """None, or how it is damaged."""
        try:
            self.manifest, self._tensors = read(self._path, self._state)
        except (Damaged, OSError) as error:
            return short(str(error))

    def put(self):
        put(self.manifest["state"], self._tensors, self._state)


def _warn(damage, stacklevel):
    warnings.warn(f"a damaged checkpoint is passed over: {damage}", RuntimeWarning, stacklevel=stacklevel)


def read(path, state):
    """The manifest, and the tensors that the state wants. All files are what was written, and match the state."""
    manifest = _folder.manifest_of(path)
    forms = {
        name: (_safetensors.dtype_called(entry["dtype"]), tuple(entry["shape"]))
        for name, entry in manifest["tensors"].items()
    }
    wrong = mismatches(manifest["state"], forms, state)
    if wrong:
        raise ValueError(f"{path} does not match the state:\n  " + "\n  ".join(wrong))
    wanted = {place for name in state for place in _tree.places(manifest["state"][name]["value"])}
    tensors = {name: torch.empty(forms[name][1], dtype=forms[name][0]) for name in wanted}
    targets = {}  # place in a file: {name there: its memory, or how many bytes nobody wants}
    for name, entry in manifest["tensors"].items():
        dtype, shape = forms[name]
        count, each = torch.Size(shape).numel(), _safetensors.itemsize(dtype)
        memory = tensors[name].view(-1).view(torch.uint8) if name in wanted else None
        for file, first, last in entry["pieces"]:
            there = name if (first, last) == (0, count) else f"{name}[{first}:{last}]"
            target = (last - first) * each if memory is None else memory[first * each : last * each]
            targets.setdefault(file, {})[there] = target
    for number, file in enumerate(manifest["files"]):
        _read_file(os.path.join(path, os.path.basename(file["name"])), file, targets.get(number, {}))
    return manifest, tensors


def _read_file(path, said, targets):
    """A file's tensors into their memory, in one go from its beginning to its end, with its hash."""
    digest, at = _folder.hash_of_nothing(), 0
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    try:
        for target in _places(path, file, targets):
            for n in range(0, len(target), _BLOCK):
                block = target[n : n + _BLOCK]
                if not read_all(file, block, at):
                    raise Damaged(f"{path} was cut off while it was read")
                digest.update(block)
                at += len(block)
    finally:
        os.close(file)
    if at != said["bytes"] or digest.hexdigest() != said["blake2b"]:
        raise Damaged(f"{path} has changed since it was written: its hash is another")


def _places(path, file, targets):
    """Memory for all of a file, in order: its header, and its tensors."""
    first = os.pread(file, 8, 0)
    size = os.fstat(file).st_size
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
    if length > size - 8:
        raise Damaged(f"{path} was cut off, or has changed since it was written")
    yield memoryview(bytearray(8 + length))
    opened = None
    try:
        opened = _safetensors.File(path)
        if set(opened.forms) != set(targets):
            raise ValueError("its tensors are others than the manifest's")
        for name in opened.forms:
            dtype, shape = opened.forms[name]
            if torch.Size(shape).numel() * _safetensors.itemsize(dtype) != _bytes_of(targets[name]):
                raise ValueError(f"{name} has another size than in the manifest")
    except ValueError as error:
        raise Damaged(f"{path} has changed since it was written: {error}") from error
    finally:
        if opened is not None:
            opened.close()
    for name in opened.forms:
        yield from _memory_of(targets[name])


def _bytes_of(target):
    return target if isinstance(target, int) else target.numel()


def _memory_of(target):
    if not isinstance(target, int):
        yield memoryview(target.numpy())
        return
    unwanted = memoryview(bytearray(min(target, _BLOCK)))
    for n in range(0, target, _BLOCK):
        yield unwanted[: min(_BLOCK, target - n)]
