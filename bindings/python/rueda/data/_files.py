"""Samples that are files."""

from rueda.common.process_sets import global_process_set
from rueda.data._errors import DataError
from rueda.data._listing import paths_of


class Files:
    """Each file is a sample.

    Parameters
    ----------
    files : path, or sequence of paths
        A directory, with those below it: rank 0 lists it, and tells the others, so all ranks make the source together. A sequence
        is taken as it is, the same on all ranks. Every host has to see the files under these paths.
    suffixes : str or tuple of str
        Endings of the names that count in a directory.
    read : callable, optional
        Of a path, to the sample; the file's bytes without.
    process_set : ProcessSet
        The ranks that make the source.

    Attributes
    ----------
    paths : list of str
        By number of the sample; sorted, where a directory was listed.
    """

    def __init__(self, files, suffixes="", read=None, process_set=global_process_set):
        self._name = files if isinstance(files, str) else f"{type(files).__name__} of files"
        self._read = read or _bytes
        self.paths = paths_of(files, suffixes, process_set)

    def __len__(self):
        return len(self.paths)

    def __repr__(self):
        return f"Files({self._name})"

    def __getitem__(self, index):
        path = self.paths[index]
        try:
            return self._read(path)
        except Exception as error:
            raise DataError(f"{path} (sample {index}) cannot be read: {error or type(error).__name__}") from error


def _bytes(path):
    with open(path, "rb") as file:
        return file.read()
