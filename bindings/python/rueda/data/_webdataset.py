"""Samples that are files of tar archives, as WebDataset has them."""

import collections
import os
import re
import tarfile
import threading

from rueda._numpy import np
from rueda.common.process_sets import global_process_set
from rueda.data._errors import DataError
from rueda.data._listing import dealt, paths_of

_OPEN_FILES = 64


class WebDataset:
    """Each group of files with one name in some tar archives is a sample: ``a/7.jpg`` and ``a/7.cls`` are sample ``a/7``.

    A sample is what WebDataset's is: ``{"__key__": "a/7", "__url__": the archive, "jpg": bytes, "cls": bytes}``.

    The library webdataset reads archives from beginning to end, so it shuffles within a buffer, and cannot go to a sample. Here
    an index of each archive's headers is made (by the tarfile of Python, in one rank for all), with which any sample is read at
    once: in a new order of the whole each epoch, and at the very sample after a resume. What the library decodes with fits as
    ``decode``.

    Parameters
    ----------
    files : path, or sequence of paths
        A directory, with the ``*.tar`` below it, which rank 0 lists; or archives. Not compressed: nothing can be
        found in the middle of those. All ranks make the source together.
    decode : callable, optional
        Of such a sample, to the sample: ``webdataset.autodecode.Decoder([webdataset.imagehandler("rgb8")])``.
    process_set : ProcessSet
        The ranks that make the source.

    Raises
    ------
    DataError
        An archive is damaged or compressed, the same on all ranks; or a sample cannot be read or decoded. Names file and sample.
    """

    def __init__(self, files, decode=None, process_set=global_process_set):
        self._decode = decode
        self.paths = paths_of(files, ".tar", process_set)
        self._indexes = dealt(self.paths, _index, process_set)
        self._ends = np.cumsum([len(index.keys) for index in self._indexes])
        self.forked()

    def forked(self):
        """This process has no files open yet."""
        self._files = _Files()

    def __len__(self):
        return int(self._ends[-1])

    def __repr__(self):
        return f"WebDataset({self.paths[0]}{', ...' if len(self.paths) > 1 else ''})"

    def __getitem__(self, index):
        archive = int(np.searchsorted(self._ends, index, side="right"))
        path, found = self.paths[archive], self._indexes[archive]
        number = index - (int(self._ends[archive - 1]) if archive else 0)
        key = found.keys[number]
        sample = {"__key__": key, "__url__": path}
        try:
            for member in range(int(found.ends[number - 1]) if number else 0, int(found.ends[number])):
                data = self._files.read(path, int(found.sizes[member]), int(found.offsets[member]))
                sample[found.suffixes[found.kinds[member]]] = data
            return sample if self._decode is None else self._decode(sample)
        except Exception as error:
            raise DataError(f"{path}: {key!r} (sample {index}) cannot be read: {error or type(error).__name__}") from error


_Index = collections.namedtuple("_Index", "keys ends kinds suffixes offsets sizes")
_Index.__doc__ = """Of one archive. ``keys``: of the samples, in order. ``ends``: of each sample, the number of the member behind its
last. ``kinds``, ``offsets``, ``sizes``: of each member, the number of its suffix in ``suffixes``, and where its bytes are."""

# As the library has it: the key ends at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


def _index(path):
    keys, ends, kinds, offsets, sizes, suffixes = [], [], [], [], [], {}
    last = "its beginning"
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                last = repr(member.name)
                archive.members = []  # tarfile would keep all
                name = _NAME.fullmatch(member.name)
                if not member.isreg() or not name or re.match(r"__[^/]*__($|/)", member.name):
                    continue
                if member.issparse():
                    raise tarfile.ReadError("it has holes, which WebDataset does not know")
                key, suffix = name[1], name[2].lower()
                if not keys or keys[-1] != key:
                    keys.append(key)
                    ends.append(len(kinds))
                    mine = set()
                if suffix in mine:
                    raise tarfile.ReadError(f"sample {key!r} has two files that end with .{suffix}")
                mine.add(suffix)
                kinds.append(suffixes.setdefault(suffix, len(suffixes)))
                offsets.append(member.offset_data)
                sizes.append(member.size)
                ends[-1] = len(kinds)
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                # tarfile takes a damaged header for the end.
                raise tarfile.ReadError("neither a member nor the archive's end")
    except tarfile.TarError as error:
        raise DataError(f"not a whole, uncompressed tar archive: {error} (behind {last})") from error
    if not keys:
        raise ValueError("no samples in it")
    as_array = [np.asarray(ends, np.int64), np.asarray(kinds, np.int32)]
    return _Index(keys, *as_array, list(suffixes), np.asarray(offsets, np.int64), np.asarray(sizes, np.int64))


class _Files:
    """Some open files. Any thread reads."""

    def __init__(self):
        self._open = collections.OrderedDict()  # path: _File; used longest ago first
        self._lock = threading.Lock()

    def read(self, path, size, offset):
        with self._lock:
            file = self._open.pop(path, None) or _File(path)
            self._open[path] = file
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)  # closed when whoever reads it has done so
        data = os.pread(file.number, size, offset)
        while len(data) < size:
            more = os.pread(file.number, size - len(data), offset + len(data))
            if not more:
                raise EOFError(f"the file ends before its data, which go to byte {offset + size}")
            data += more
        return data


class _File:
    def __init__(self, path):
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close=os.close):
        if self.number >= 0:
            close(self.number)
