"""Samples that are rows of arrays."""

from rueda._numpy import np


class Arrays:
    """Rows of arrays: in memory, or mapped from files (``numpy.load(path, mmap_mode="r")``).

    Parameters
    ----------
    *arrays, **named
        Arrays with as many rows each. Given by position, a sample is a tuple of rows, or the row itself of a single array; given
        by name, a dict of rows.
    """

    def __init__(self, *arrays, **named):
        if bool(arrays) == bool(named):
            raise ValueError("Arrays needs arrays: all by position, for tuples, or all by name, for dicts")
        self._names = list(named)
        self._arrays = [np.asanyarray(array) for array in (arrays or named.values())]
        lengths = [len(array) if array.ndim else None for array in self._arrays]
        if None in lengths or len(set(lengths)) > 1:
            raise ValueError(f"Arrays needs as many rows in each array: they have {lengths}")

    def __len__(self):
        return len(self._arrays[0])

    def __repr__(self):
        return f"Arrays of {len(self)} rows"

    def __getitem__(self, index):
        return self._put([array[index] for array in self._arrays])

    def batch(self, indices, empty):
        """The rows with these numbers, in arrays that ``empty`` makes."""
        return self._put([self._taken(array, indices, empty) for array in self._arrays])

    def _taken(self, array, indices, empty):
        if array.dtype.hasobject:
            return list(array[indices])
        out = empty((len(indices), *array.shape[1:]), array.dtype)
        # Indices are right; checking them would go through a buffer.
        return np.take(array, indices, axis=0, out=out, mode="clip")

    def _put(self, parts):
        if self._names:
            return dict(zip(self._names, parts))
        return parts[0] if len(parts) == 1 else tuple(parts)
