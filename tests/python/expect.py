"""Expectations that tests share: exact arrays, expected errors, waiting for another thread."""

import contextlib
import time

import numpy as np

REDUCE = {
    "Sum": lambda arrays: np.sum(arrays, axis=0, dtype=arrays[0].dtype),
    "Min": lambda arrays: np.min(arrays, axis=0),
    "Max": lambda arrays: np.max(arrays, axis=0),
    "Product": lambda arrays: np.prod(arrays, axis=0, dtype=arrays[0].dtype),
}


def same(actual, expected):
    """Equal in type, shape and every element."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    np.testing.assert_array_equal(actual, expected)


@contextlib.contextmanager
def raises(kind, *fragments):
    """The block raises ``kind`` with a message that has all fragments."""
    try:
        yield
    except kind as error:
        missing = [fragment for fragment in fragments if fragment not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def is_shared(address):
    """Whether the address lies in the heap, as the kernel sees it."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(text, 16) for text in line.split()[0].split("-"))
            if start <= address < end:
                return "memfd:rueda-heap" in line
    return False


def eventually(condition, seconds=60):
    """Waits for something that another thread does; generous, because machines are busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)
