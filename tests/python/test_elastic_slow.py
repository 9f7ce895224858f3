"""A rank that is slow is replaced, where that was asked for and another is ready (``--evict-slow``).

Who is slow is decided by numbers of given times in tests/launcher/slow_ranks_test.cc, who leaves for it in
tests/launcher/membership_policy_test.cc. Here real ranks are slow, for real seconds.
"""

import re
import sys

import pytest
from worlds import launch

# Member 1 is slow. All train until it is gone, or for so many steps, of which slow ones take 50 ms.
MOST_STEPS = 1500  # who would never be replaced ends the test with an error, not by its time limit
SCRIPT = """
import sys, time
import numpy, rueda.numpy as hvd
from rueda import elastic
from rueda._runtime import runtime
hvd.init()

@elastic.run
def train(state):
    while state.step < int(sys.argv[1]) and 1 in runtime.epoch.members:
        time.sleep(0.05 if runtime.epoch.member == 1 else 0.001)
        hvd.allreduce(numpy.ones(8), name="work")
        state.step += 1
        state.commit()

train(elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))
print("left", sorted(runtime.epoch.members), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def over_hosts(folder):
    """All of this machine: what starts agents is told a host's name and forgets it."""
    there = folder / "there"
    there.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    there.chmod(0o700)
    return "-H", "one:1,two:1,three:1", "--rsh-agent", there


@pytest.mark.parametrize("several", (False, pytest.param(True, marks=pytest.mark.slow)))
def test_a_slow_rank_leaves_for_a_spare(script, tmp_path, several):
    hosts = over_hosts(tmp_path) if several else ()
    size, options = (2, ("--max-np", 2)) if several else (3, ())
    code, output = launch(
        size, [sys.executable, script, MOST_STEPS],
        options=list(map(str, (*hosts, "--min-np", 2, "--spares", 1, "--evict-slow", "3:2", *options))))
    assert code == 0, output
    slow, factor = re.search(r"(rank 1 on \S+) is (\S+) times slower than the others: when another is ready", output).groups()
    assert float(factor) >= 3
    assert f"{slow} is too slow: a spare on " in output
    assert " was lost: " not in output
    members = "[0, 2, 3]" if not several else "[0, 2]"
    assert output.count(f"left {members}") == size, output


@pytest.mark.slow
def test_without_a_replacement_the_slow_rank_stays(script):
    code, output = launch(2, [sys.executable, script, 100], options=["--min-np", "2", "--max-np", "2", "--evict-slow", "3:2"])
    assert code == 0, output
    assert "times slower than the others" in output and "is too slow" not in output
    assert output.count("left [0, 1]") == 2


@pytest.mark.slow
def test_nobody_is_replaced_who_did_not_ask_for_it(script):
    code, output = launch(2, [sys.executable, script, 60], options=["--min-np", "2", "--spares", "1"])
    assert code == 0, output
    assert "slower" not in output and "slow:" not in output
    assert output.count("left [0, 1]") == 2
