"""``ruedarun --bind``: where ranks may run, with how many threads, and what is said about it."""

import json
import os
import re
import subprocess
import sys

import pytest
from worlds import TIMEOUT_SECONDS, ruedarun

CPUS = sorted(os.sched_getaffinity(0))
SHOW = """import json, os
print(json.dumps([os.environ["RUEDA_LOCAL_RANK"], sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]]))"""
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="there is one cpu only")


def start(*arguments, env=None):
    done = subprocess.run(
        [ruedarun(), *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
        env={**{k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}, **(env or {})},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def shown(*options, size=2, env=None):
    """[cpus, threads] of each rank, and what ruedarun said."""
    code, out, err = start("-np", size, "--no-prefix", *options, sys.executable, "-c", SHOW, env=env)
    assert code == 0, err
    told = sorted(map(json.loads, out.splitlines()), key=lambda rank: int(rank[0]))
    return [rank[1:] for rank in told], err


def test_without_bind_ranks_run_anywhere():
    ranks, _ = shown()
    assert [cpus for cpus, _ in ranks] == [CPUS] * 2
    assert shown("--bind", "none")[0] == ranks


@two_cpus
def test_a_list_binds_each_rank_and_verbose_tells():
    first, last = CPUS[0], CPUS[-1]
    ranks, said = shown("--bind", f"{last}:{first},{last}", "--verbose")
    assert ranks[0] == [[last], "1"] and ranks[1][0] == [first, last]
    assert re.search(rf"ruedarun: rank 0 is pid \d+, cpu {last} \(NUMA node \d+\), 1 thread$", said, re.M), said


@two_cpus
def test_core_gives_each_rank_cores_of_its_own():
    code, out, err = start("--print-config", "--bind", "core", "-np", 2)
    if code == 2 and "1 core on" in err:
        pytest.skip("the cpus are threads of one core")
    assert code == 0, err
    ranks, _ = shown("--bind", "core", env={"OMP_NUM_THREADS": "7"})
    assert sorted(ranks[0][0] + ranks[1][0]) == CPUS
    assert [threads for _, threads in ranks] == ["7", "7"]  # the user's


def test_what_cannot_be_is_refused_before_a_rank_starts(tmp_path):
    for options, reason in [
        (("-np", len(CPUS) + 1, "--bind", "core"), rf"for {len(CPUS) + 1} ranks; --bind none lets ranks share"),
        (("-np", 2, "--bind", "all"), "expected none, core, numa, or lists of cpus"),
        (("-np", 2, "--bind", f"{CPUS[0]}:{CPUS[-1] + 1}"), f"cpu {CPUS[-1] + 1} is none that we may use"),
    ]:
        code, _, err = start(*options, "touch", tmp_path / "started")
        assert code == 2 and re.search(reason, err), err
    assert not (tmp_path / "started").exists()


def test_another_machines_topology_is_shown_but_not_bound_to():
    two_sockets = {"HWLOC_SYNTHETIC": "pack:2 [numa] core:4 pu:2"}
    code, out, err = start("--print-config", "--bind", "numa", "-np", 4, env=two_sockets)
    assert code == 0, err
    if "/sys" in out:
        pytest.skip("hwloc's library is not installed")
    table = out[out.index("binding ") :].splitlines()
    assert table[0].startswith("binding         --bind numa: 2 NUMA nodes, 8 cores, 16 hardware threads here (hwloc, ")
    assert [line.strip() for line in table[1:]] == [
        "local rank 0  cpus 0-7 (NUMA node 0), 2 threads",
        "local rank 1  cpus 0-7 (NUMA node 0), 2 threads",
        "local rank 2  cpus 8-15 (NUMA node 1), 2 threads",
        "local rank 3  cpus 8-15 (NUMA node 1), 2 threads",
    ]
    code, _, err = start("-np", 2, "--bind", "numa", "true", env=two_sockets)
    assert code == 2 and "unset HWLOC_SYNTHETIC" in err


def test_without_hwloc_the_kernel_is_asked(tmp_path):
    """Found first under its name: a file that is no library."""
    (tmp_path / "libhwloc.so.15").write_text("no library")
    code, out, err = start("--print-config", "--bind", "numa", "-np", 1, env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert code == 0, err
    assert re.search(r"binding .*\(/sys, because .*libhwloc.so.15", out), out
    assert shown("--bind", "numa", size=1, env={"LD_LIBRARY_PATH": str(tmp_path)})[0][0][0] == CPUS
