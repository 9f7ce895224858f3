"""Counters: all of them by name, as docs/counters.md lists them."""

import pathlib
import re

import numpy as np
import pytest
import rueda as hvd
from worlds import ranks

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "counters.md"


def listed(part):
    """The counters of a table of the page, in its order."""
    [rows] = re.findall(rf"^<!-- generated .*: {part} -->\n(.*?)<!-- end", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^\| `(\w+)` \|", rows, re.M)


@ranks(2)
def test_all_counters_are_those_of_the_page():
    before = hvd.counters()
    assert list(before) == listed("COUNTERS")
    assert all(type(value) is int and value >= 0 for value in before.values()), before
    hvd.allreduce(np.ones(1000), name="counted")
    after = hvd.counters()
    assert after["tensors"] == before["tensors"] + 1 and after["batches"] == before["batches"] + 1
    assert after["bytes_reduced"] > before["bytes_reduced"]
    assert hvd.counter("tensors") == after["tensors"] and hvd.counter("no such") == -1


def test_without_a_job_there_are_no_counters():
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.counters()
