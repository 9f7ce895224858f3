"""Samples that are rows of Parquet files."""

import collections
import threading

from rueda._numbers import whole_number
from rueda._numpy import np
from rueda.common.process_sets import global_process_set
from rueda.data._batches import stacked
from rueda.data._errors import DataError, library
from rueda.data._listing import dealt, paths_of


class Parquet:
    """Each row of some Parquet files is a sample: a dict of its columns. Read by pyarrow.

    A file's row group is read and decoded as a whole. So that not each sample costs one, a loader shuffles the row groups, and the
    rows within ``window`` of them that follow each other; up to twice as many are kept in memory, decoded.

    Parameters
    ----------
    files : path, or sequence of paths
        A directory, with the ``*.parquet`` below it, which rank 0 lists; or files. Each footer is read by one rank, so all
        ranks make the source together.
    columns : list of str, optional
        Others are not read.
    window : int
        Row groups among whose rows a loader shuffles. More shuffle better, and take more memory.
    process_set : ProcessSet
        The ranks that make the source.

    Raises
    ------
    ImportError
        There is no pyarrow: ``pip install pyarrow``.
    DataError
        A file cannot be read; names file, rows and sample. The same on all ranks where it is about a footer.
    """

    def __init__(self, files, columns=None, window=4, process_set=global_process_set):
        self._arrow = library("pyarrow.parquet", "rueda.data.Parquet", "pyarrow")
        self.window = whole_number("window", window, 1)
        self._columns = None if columns is None else list(columns)
        self.paths = paths_of(files, ".parquet", process_set)
        footers = dealt(self.paths, self._footer, process_set)
        for path, (schema, _) in zip(self.paths, footers):
            if schema != footers[0][0]:
                raise ValueError(f"other columns in {path}, {schema}, than in {self.paths[0]}, {footers[0][0]}")
        # Row groups one after another: their rows, whose file each is of and which there.
        self.blocks = [rows for _, groups in footers for rows in groups]
        self._files = [(file, group) for file, (_, groups) in enumerate(footers) for group in range(len(groups))]
        self._ends = np.cumsum(np.asarray(self.blocks, np.int64))
        self.forked()

    def forked(self):
        """This process keeps nothing yet."""
        self._kept = collections.OrderedDict()  # number of a row group: its columns; used longest ago first
        self._lock = threading.Lock()  # of what is kept; also, one group is decoded at a time, by all of pyarrow's threads

    def _footer(self, path):
        """(columns and their types as text, rows of each row group)"""
        with self._arrow.ParquetFile(path) as file:
            schema = file.schema_arrow
            known = set(schema.names)
            missing = [name for name in self._columns or () if name not in known]
            if missing:
                raise ValueError(f"no column {', '.join(missing)}; there are {', '.join(schema.names)}")
            wanted = [schema.field(name) for name in (self._columns or schema.names)]
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return ", ".join(f"{field.name}: {field.type}" for field in wanted), groups

    def __len__(self):
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self):
        return f"Parquet({self.paths[0]}{', ...' if len(self.paths) > 1 else ''})"

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        """A list of the samples with these numbers."""
        samples = []
        for index, group, row in zip(indices, *self._places(indices)):
            columns = self._group(int(group), index)
            samples.append({name: column[row] for name, column in columns.items()})
        return samples

    def batch(self, indices, empty):
        """The rows with these numbers, column by column."""
        groups, rows = self._places(indices)
        parts = []  # (where in the batch, the columns of these rows)
        for group in np.unique(groups):
            where = np.flatnonzero(groups == group)
            columns = self._group(int(group), int(indices[where[0]]))
            parts.append((where, {name: column[rows[where]] for name, column in columns.items()}))
        return {name: self._column([(where, rows_[name]) for where, rows_ in parts], len(indices), empty) for name in parts[0][1]}

    def _column(self, parts, count, empty):
        if any(column.dtype.hasobject for _, column in parts):
            values = [None] * count
            for where, column in parts:
                for place, value in zip(where, column):
                    values[place] = value
            return stacked(values, empty)
        out = empty((count,), np.result_type(*{column.dtype for _, column in parts}))
        for where, column in parts:
            out[where] = column
        return out

    def _places(self, indices):
        """(row group, row in it) of each."""
        indices = np.asarray(indices, np.int64)
        groups = np.searchsorted(self._ends, indices, side="right")
        return groups, indices - np.concatenate([[0], self._ends])[groups]

    def _group(self, number, index):
        """The columns of a row group, as arrays by name. ``index``: of the sample for which it is needed."""
        with self._lock:
            columns = self._kept.pop(number, None)
            if columns is None:
                columns = self._decoded(number, index)
            self._kept[number] = columns
            while len(self._kept) > 2 * self.window:
                self._kept.popitem(last=False)
        return columns

    def _decoded(self, number, index):
        file, group = self._files[number]
        try:
            with self._arrow.ParquetFile(self.paths[file]) as opened:
                table = opened.read_row_group(group, columns=self._columns)
            return {name: table.column(name).to_numpy() for name in (self._columns or table.column_names)}
        except Exception as error:
            begin = int(self._ends[number]) - self.blocks[number]
            raise DataError(
                f"{self.paths[file]}: row group {group} (samples {begin} to {int(self._ends[number]) - 1}), "
                f"in which sample {index} is, cannot be read: {error}"
            ) from error
