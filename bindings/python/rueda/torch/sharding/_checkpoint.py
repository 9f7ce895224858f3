"""A sharded optimizer's state in a folder: what each rank has in a file of its own, and an index of all.

    index.json                    parameters, options, scalars, and which file has which elements
    3f0c55d1a2b4-00000.safetensors   of rank 0: for each parameter of which it has a part, "NAME.KEY"
    3f0c55d1a2b4-00001.safetensors   ...

Each save takes a new number for its files. The index comes last, by a rename, and names those of its save: whatever
ends a save before leaves the one before as it was. No more than one batch's share is in memory for it.
"""

import contextlib
import json
import os
import re

import torch

from rueda.torch import _safetensors
from rueda.torch.sharding import _values
from rueda.torch.sharding._sources import Source

INDEX = "index.json"
FORMAT, VERSION = "rueda optimizer state", 1
_FILE = re.compile(r"[0-9a-f]{12}-\d{5}\.safetensors|index\.[0-9a-f]{12}\.new")


def is_checkpoint(path):
    return os.path.isfile(os.path.join(path, INDEX))


class Checkpoint(Source):
    """What is in such a folder."""

    def __init__(self, path):
        self._path = os.fspath(path)
        place = os.path.join(self._path, INDEX)
        try:
            with open(place, encoding="utf-8") as file:
                index = json.load(file)
            if not isinstance(index, dict) or index.get("format") != FORMAT:
                raise ValueError(f"{place} is no index of an optimizer's state")
            if index["version"] != VERSION:
                raise ValueError(f"{place} has version {index['version']}; this rueda reads version {VERSION}")
            self.roundings = index["roundings"]
            self._parameters = index["parameters"]
            self.names = {n: p["name"] for n, p in enumerate(self._parameters) if p["name"] is not None}
            self.groups = [(_values.decoded(group["options"]), group["parameters"]) for group in index["groups"]]
            self._files = {n: os.path.join(self._path, os.path.basename(name)) for n, name in enumerate(index["files"])}
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{place} is damaged: {error!r}") from error

    def scalars(self, number):
        return _values.decoded(self._parameters[number]["scalars"])

    def forms(self, number):
        entry = self._parameters[number]
        return {
            key: (_safetensors.dtype_called(dtype), tuple(entry["shape"]), tuple(entry["stride"]))
            for key, dtype in entry["elements"].items()
        }

    def read(self, number, key, first, last):
        entry = self._parameters[number]
        dtype = _safetensors.dtype_called(entry["elements"][key])
        result, left = torch.empty(last - first, dtype=dtype), last - first
        for file, begin, end in entry["pieces"]:
            part = max(begin, first), min(end, last)
            if part[0] < part[1]:
                piece = self._file(file).read(tensor_name(entry["name"], number, key), part[0] - begin, part[1] - begin)
                result[part[0] - first : part[1] - first] = piece
                left -= part[1] - part[0]
        if left:
            raise ValueError(f"{self._path}: {left} elements of {key!r} of {entry['name'] or number} are in no file")
        return result

    def _file(self, number):
        """Opened when it is first needed: there are as many as ranks saved it."""
        if isinstance(self._files[number], str):
            self._files[number] = _safetensors.File(self._files[number])
        return self._files[number]


def tensor_name(name, number, key):
    return f"{number if name is None else name}.{key}"


def file_of(run, rank):
    return f"{run}-{rank:05d}.safetensors"


def entry(name, shape, stride, scalars, types):
    """What the index says of a parameter; ``types``: of what its state has for each element."""
    return {
        "name": name,
        "shape": list(shape),
        "stride": list(stride),
        "scalars": _values.encoded(scalars),
        "elements": {key: _safetensors.dtype_name(dtype) for key, dtype in types.items()},
        "pieces": [],  # file's number, first and last element
    }


def put_index(path, new, run, ranks, roundings, entries, options, members):
    """Makes a save the folder's, the only one; what it names is there. ``new``: a place for it before that.

    An error means that the folder is as it was: what comes after the rename may fail, and is not told.
    """
    index = {
        "format": FORMAT,
        "version": VERSION,
        "roundings": roundings,
        "files": [file_of(run, rank) for rank in range(ranks)],
        "groups": [{"options": _values.encoded(o), "parameters": numbers} for o, numbers in zip(options, members)],
        "parameters": entries,
    }
    with open(new, "w", encoding="utf-8") as file:
        json.dump(index, file, separators=(",", ":"), allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, os.path.join(path, INDEX))
    with contextlib.suppress(OSError):  # files of the save before stay until the index is on disk
        _sync_folder(path)
        _remove_others(path, run)


def _sync_folder(path):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_others(path, run):
    """Files of saves before this one, whole or not."""
    for name in os.listdir(path):
        if _FILE.fullmatch(name) and run not in name:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))
