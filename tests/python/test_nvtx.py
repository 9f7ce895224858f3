"""NVTX ranges, as a profiler sees them that NVTX_INJECTION64_PATH names: docs/timeline.md."""

import collections
import os
import pathlib
import subprocess

import pytest
import timelines
from worlds import results, run_ranks

LISTENER = pathlib.Path(__file__).resolve().parents[1] / "support/nvtx_listener.c"

Range = collections.namedtuple("Range", "name begin end bytes")


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    library = tmp_path_factory.mktemp("nvtx") / "listener.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, LISTENER, "-lpthread"], check=True)
    return library


def trains(steps=30):
    import rueda.torch as hvd
    import torch
    from rueda.torch import timeline

    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 9))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(20, 64)).square().mean().backward()
        optimizer.step()
    with timeline.span("evaluation"), timeline.span("batch"):
        hvd.allreduce(torch.ones(1000), name="score")
    timeline.instant("saved")
    hvd.barrier()
    return os.getpid(), hvd.rank(), hvd.counter("recording"), hvd.counter("planned_batches")


def reduces():
    import numpy
    import rueda as hvd

    hvd.allreduce(numpy.ones(4), name="x")
    return hvd.counter("recording")


def read(path):
    """What the profiler was told: [Range], [names of marks], [other lines]."""
    ranges, open_, marks, other = [], {}, [], []
    for line in path.read_text().splitlines():
        what, number, time, size, name = line.split("\t")
        if what == "begin":
            open_[number] = (name, int(time), int(size))
        elif what == "end":
            begun, since, of = open_.pop(number)
            ranges.append(Range(begun, since, int(time), of))
        elif what == "mark":
            marks.append(name)
        else:
            other.append((what, name))
    assert not open_, "every range ends"
    return ranges, marks, other


def test_a_profiler_sees_what_the_timeline_shows(listener, tmp_path):
    path = tmp_path / "all.json"
    env = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_LISTENER_FILE": str(tmp_path / "nvtx")}
    options = ["--timeline", str(path), "--timeline-all-ranks"]
    ranks = results(run_ranks(2, trains, env, options=options))
    shown = timelines.tracks(path)
    for pid, rank, recording, planned in ranks:
        assert recording == 1 and planned > 0
        ranges, marks, other = read(tmp_path / f"nvtx.{pid}")
        assert other == [("domain", "rueda"), ("destroy", "")]
        assert marks == ["saved"]
        seen = collections.Counter(r.name for r in ranges)
        assert seen["optimizer step"] == seen["backward"] == 30 == len(shown[rank]["optimizer step"])
        assert seen["evaluation"] == seen["batch"] == 1
        operations = [r for r in ranges if "." in r.name]
        batches = {e["args"]["batch"]: e["args"]["bytes"] for e in shown[rank]["on the wire"]}
        assert sorted(r.bytes for r in operations) == sorted(batches.values()), "each batch is a range"
        assert all(r.begin <= r.end for r in ranges)
        (score,) = (r for r in operations if r.name == "allreduce.score")
        (span,) = (r for r in ranges if r.name == "evaluation")
        assert score.bytes == 4000 and span.begin <= score.begin <= score.end <= span.end


def test_it_needs_no_timeline(listener, tmp_path):
    env = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_LISTENER_FILE": str(tmp_path / "nvtx")}
    for pid, _, recording, _ in results(run_ranks(2, trains, env)):
        assert recording == 1
        names = [r.name for r in read(tmp_path / f"nvtx.{pid}")[0]]
        assert names.count("optimizer step") == 30 and "allreduce.score" in names


@pytest.mark.parametrize("listens", [False, True])
def test_nothing_is_recorded_when_nobody_listens_or_nothing_is_to_be_seen(listener, listens):
    seen = {"NVTX_INJECTION64_PATH": str(listener), "HOROVOD_DISABLE_NVTX_RANGES": "1"}
    assert results(run_ranks(2, reduces, seen if listens else {})) == [0, 0]


@pytest.mark.parametrize("library", ["/nowhere/profiler.so", "libc.so.6"])
def test_a_library_that_is_none_is_told_and_the_job_runs(library):
    outcome = run_ranks(2, reduces, {"NVTX_INJECTION64_PATH": library})
    assert results(outcome) == [0, 0]
    assert "no NVTX ranges" in outcome.output and "NVTX_INJECTION64_PATH" in outcome.output
