"""Whole numbers that callers give: one check, in one sentence."""

import operator

from rueda._numpy import np


def whole_number(what, value, least=None, bits=None):
    """The number as an int; ValueError for what is none, below ``least``, or not below 2 to the power of ``bits``.

    0.0 and False are none: as keys of caches they would equal 0.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (bits is not None and number >= 1 << bits):
        bounds = ("" if least is None else f", {least} or more") + ("" if bits is None else f", below 2**{bits}")
        raise ValueError(f"{what}={value!r:.40}: expected a whole number{bounds}")
    return number


def whole_numbers(what, values, dtype):
    """The numbers as an array of this integer dtype, contiguous; ValueError for others, and for what the dtype does not hold."""
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"{what}: {given.dtype}, expected whole numbers")
    array = np.ascontiguousarray(given, dtype)
    if (array != given).any():
        raise ValueError(f"{what}: {given[array != given][0]} is no {array.dtype}")
    return array
