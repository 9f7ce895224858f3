"""What has to be found out about files, found out once for all ranks: names by rank 0, contents by each rank for some of them.

All ranks of the process set call these, in the same order. Without a job, and in a job of one rank, nothing is sent. What fails on
one rank is the same `DataError` on all.
"""

import os

from rueda._objects import allgather_object, broadcast_object
from rueda._runtime import runtime
from rueda.common import basics
from rueda.common.process_sets import id_for_operation
from rueda.data import _waits
from rueda.data._errors import DataError


def place(process_set):
    """(rank, size) in the process set; (0, 1) without a job, and for who waits to be let into one."""
    epoch = runtime.epoch
    if not basics.is_initialized() or (epoch is not None and epoch.provisional):
        return 0, 1
    id_for_operation(process_set)  # ValueError for what is none of this rank's
    return process_set.rank(), process_set.size()


def listed(directory, suffixes, process_set):
    """Paths of the files below a directory whose names end so, sorted; rank 0 alone looks.

    Links to files count, links to directories do not; names that begin with a dot are passed over.
    """
    directory = os.fspath(directory)
    suffixes = (suffixes,) if isinstance(suffixes, str) else tuple(suffixes)
    rank, size = place(process_set)
    found = None, None
    with _waits.counted("index"):
        if rank == 0:
            try:
                found = sorted(_below(directory, suffixes)), None
            except OSError as error:
                found = None, f"rank 0 cannot list {directory}: {error}"
        if size > 1:
            found = broadcast_object(found, process_set.ranks[0], "rueda.data.listed", process_set)
    names, problem = found
    if problem:
        raise DataError(problem)
    if not names:
        ending = f" that end with {' or '.join(suffixes)}" if any(suffixes) else ""
        raise ValueError(f"{directory}: no files{ending} in it")
    return [os.path.join(directory, name) for name in names]


def _below(directory, suffixes):
    """Names, from the directory."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(directory, folder)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.name.endswith(suffixes) and entry.is_file():
                    yield name


def paths_of(given, suffixes, process_set):
    """Paths of what a source was given: a directory, which rank 0 lists; or a sequence of files, which nobody lists."""
    if isinstance(given, (str, os.PathLike)):
        return listed(given, suffixes, process_set)
    paths = [os.fspath(path) for path in given]
    if not paths:
        raise ValueError("no files are given")
    return paths


def dealt(paths, read, process_set):
    """``read(path)`` of each, in order: each rank reads some of them, and all ranks get all results."""
    rank, size = place(process_set)
    mine = {}
    with _waits.counted("index"):
        for number in range(rank, len(paths), size):
            try:
                mine[number] = read(paths[number]), None
            except Exception as error:
                mine[number] = None, f"{paths[number]}: {error or type(error).__name__} (rank {rank} has looked)"
                break  # as soon as one is wrong, all is
        every = [mine] if size == 1 else allgather_object(mine, "rueda.data.dealt", process_set)
    found = {number: result for each in every for number, result in each.items()}
    for number in sorted(found):
        if found[number][1]:
            raise DataError(found[number][1])
    return [found[number][0] for number in range(len(paths))]
