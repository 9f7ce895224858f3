"""Whole numbers that callers give: what is one, and what is said of the others."""

import re

import numpy
import pytest

from rueda._numbers import whole_number, whole_numbers


@pytest.mark.parametrize("value", [0, numpy.int64(0), numpy.uint8(0)])
def test_a_whole_number_becomes_an_int(value):
    assert type(whole_number("n", value)) is int


@pytest.mark.parametrize(
    ("value", "least", "bits", "bounds"),
    [
        (0.0, None, None, ""),
        (False, None, None, ""),
        (numpy.bool_(True), None, None, ""),
        ("1", None, None, ""),
        (None, 1, None, ", 1 or more"),
        (0, 1, None, ", 1 or more"),
        (-1, 0, 3, ", 0 or more, below 2**3"),
        (8, 0, 3, ", 0 or more, below 2**3"),
    ],
)
def test_what_is_none_is_refused_by_its_name(value, least, bits, bounds):
    with pytest.raises(ValueError, match=re.escape(f"n={value!r}: expected a whole number{bounds}") + "$"):
        whole_number("n", value, least, bits)


def test_bounds_are_inside():
    assert [whole_number("n", each, 1, 3) for each in (1, 7)] == [1, 7]


def test_arrays_of_whole_numbers_keep_their_values():
    assert whole_numbers("lengths", [3, 1 << 40], numpy.int64).tolist() == [3, 1 << 40]
    assert whole_numbers("lengths", [], numpy.int64).dtype == numpy.int64
    assert whole_numbers("blocks", numpy.arange(6, dtype=numpy.uint8).reshape(2, 3).T, numpy.int32).flags.c_contiguous


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([3.7], "blocks: float64, expected whole numbers"),
        ([True], "blocks: bool, expected whole numbers"),
        ([[1, 1 << 32]], "blocks: 4294967296 is no int32"),
        (numpy.array([1 << 31], numpy.uint32), "blocks: 2147483648 is no int32"),
    ],
)
def test_arrays_of_other_numbers_are_refused(values, said):
    with pytest.raises(ValueError, match=said + "$"):
        whole_numbers("blocks", values, numpy.int32)
