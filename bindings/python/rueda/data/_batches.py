"""From numbers of samples to a batch: arrays for what can be one, lists for the rest, in the shape of a sample."""

from rueda._numpy import np
from rueda.data._errors import DataError, with_note


def stacked(samples, empty):
    """The batch of these samples, which are alike: dicts and tuples stay, numbers and arrays become arrays, anything else a list.

    ``empty(shape, dtype)``: makes the arrays. ValueError where samples differ.
    """
    first = samples[0]
    if isinstance(first, dict):
        for sample in samples:
            if not isinstance(sample, dict) or sample.keys() != first.keys():
                raise _differ("keys", _keys(first), _keys(sample))
        return {key: stacked([sample[key] for sample in samples], empty) for key in first}
    if isinstance(first, (tuple, list)):
        for sample in samples:
            if not isinstance(sample, (tuple, list)) or len(sample) != len(first):
                raise _differ("lengths", len(first), getattr(sample, "__len__", lambda: "none")())
        parts = [stacked(list(part), empty) for part in zip(*samples)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if isinstance(first, (str, bytes, bytearray)) or first is None:
        return list(samples)
    arrays = [np.asarray(sample) for sample in samples]
    if any(array.dtype.kind not in "biufcV" for array in arrays):
        return list(samples)
    for array in arrays:
        if array.shape != arrays[0].shape:
            raise _differ("shapes", arrays[0].shape, array.shape)
    batch = empty((len(arrays), *arrays[0].shape), np.result_type(*{array.dtype for array in arrays}))
    return np.stack(arrays, out=batch)


def _keys(sample):
    return sorted(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__


def _differ(what, one, other):
    return ValueError(
        f"samples of a batch have other {what}, {one} and {other}: make them alike in transform=, or give collate="
    )


class Reader:
    """Reads batches of a source. Used by several threads at once, and in forked processes.

    Parameters
    ----------
    source : object
        With ``source[index]``. ``__getitems__(indices)``, a list of samples, and ``batch(indices, empty)``, a batch, are used
        instead where there are such.
    transform : callable, optional
        Of a sample, to what becomes of it.
    collate : callable, optional
        Of a list of samples, to a batch; `stacked` without.
    """

    def __init__(self, source, transform=None, collate=None):
        self._source, self._transform, self._collate = source, transform, collate

    def __call__(self, indices, empty):
        """The batch of the samples with these numbers, whose arrays ``empty`` has made."""
        is_plain = self._transform is None and self._collate is None
        if is_plain and hasattr(self._source, "batch"):
            return self._source.batch(indices, empty)
        indices = indices.tolist()
        samples = self._samples(indices)
        try:
            return stacked(samples, empty) if self._collate is None else self._collate(samples)
        except Exception as error:
            raise with_note(error, f"in the batch of samples {shortened(indices)} of {self._source!r}")

    def forked(self):
        """Called in a process that another thread's locks may have come into: sources that have some make new ones."""
        getattr(self._source, "forked", lambda: None)()

    def _samples(self, indices):
        read = getattr(self._source, "__getitems__", None)
        samples = read(indices) if read is not None else None
        if samples is not None and len(samples) != len(indices):
            raise DataError(f"{self._source!r}: __getitems__ gave {len(samples)} samples for {len(indices)}")
        done = []
        for place, index in enumerate(indices):
            try:
                sample = self._source[index] if samples is None else samples[place]
                done.append(sample if self._transform is None else self._transform(sample))
            except Exception as error:
                raise with_note(error, f"in sample {index} of {self._source!r}")
        return done


def shortened(indices):
    """As text: the first few."""
    return ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
