"""The timeline as users start it, the summary, and who is named as slow: docs/timeline.md."""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import numpy as np
import pytest
import rueda as hvd
import timelines
from expect import eventually, raises
from worlds import launch, ranks, results, run_ranks

STEPS = 40
ROOT = pathlib.Path(__file__).resolve().parents[2]


def train(steps=STEPS):
    """Steps of DistributedOptimizer; returns how many batches ran without a message."""
    import torch
    import rueda.torch as hvd

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 9))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(20, 64)).square().mean().backward()
        optimizer.step()
    return hvd.counter("planned_batches")


def trains_while_somebody_reads():
    hvd.allreduce(np.ones(3, np.float32), name="test_allreduce")
    path = os.environ["HOROVOD_TIMELINE"]

    def complete():
        with open(path) as file:
            text = file.read()
        json.loads(text)  # at any moment
        return all(
            name in text
            for name in (
                '"allreduce.test_allreduce"',
                '"NEGOTIATE_ALLREDUCE"',
                '"ALLREDUCE"',
                '"CYCLE_START"',
            )
        )

    if hvd.rank() == 0:
        eventually(complete)
    planned = train()
    for _ in range(3):
        hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="rows")
        hvd.broadcast(np.ones(5), 1, name="from one")
        hvd.alltoall(np.ones(4), name="across")
        hvd.reducescatter(np.ones(200_000, np.float32), name="shares")
    hvd.barrier()
    return planned


def test_tools_that_know_horovods_format_read_ours(tmp_path):
    path = tmp_path / "horovod.json"
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    planned = results(run_ranks(2, trains_while_somebody_reads, env))
    assert min(planned) > 0
    rounds, marks, cycles = timelines.horovod(path)
    (single,) = rounds["allreduce.test_allreduce"]
    assert sorted(single.ready) == [0, 1]
    assert (single.op, single.dtype, single.shape) == ("ALLREDUCE", "float32", "[3]")
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        of_tensor = rounds["allreduce." + name]
        assert len(of_tensor) == STEPS, "steps of the plan are there too"
        assert any(not one.ready for one in of_tensor) and any(one.ready for one in of_tensor)
        assert all(one.negotiated[1] <= one.ran[0] for one in of_tensor)
    large = rounds["reducescatter.shares"][0]
    assert {name for name, *_ in large.activities} >= {"GLOO_REDUCESCATTER"}, large
    assert {one.op for of_tensor in rounds.values() for one in of_tensor} == timelines.OPS
    assert len(marks["optimizer step"]) == STEPS and len(marks["backward"]) == STEPS
    assert cycles == sorted(cycles) and len(cycles) > STEPS / 2
    assert list(tmp_path.iterdir()) == [path], "rank 0 alone writes"


def test_all_ranks_on_one_clock_and_the_summary(tmp_path):
    path = tmp_path / "all.json"
    options = ["--timeline", path, "--timeline-all-ranks", "--summary"]
    outcome = run_ranks(2, train, options=list(map(str, options)))
    assert min(results(outcome)) > 0
    assert list(tmp_path.iterdir()) == [path], "the ranks' parts have become one file"
    found = timelines.tracks(path)
    assert set(found) == {0, 1}
    for rank, stages in found.items():
        assert stages["about"]["name"].startswith(f"rank {rank} ")
        assert stages["about"]["clock_offset_ns"] == 0, "ranks of one host share the clock"
        assert len(stages["backward"]) == len(stages["optimizer step"]) == STEPS
        assert len(stages["submitted"]) == len(stages["negotiated"])
        weights = [e for e in stages["negotiated"] if e["name"] == "allreduce.0.weight"]
        assert len(weights) == STEPS
        assert {e["args"]["bytes"] for e in weights} == {64 * 300 * 4}
        assert len(stages["on the wire"]) >= STEPS and stages["packed"] and stages["unpacked"]
    # The same batch has the same number, name and size everywhere.
    batches = [
        {(e["args"]["batch"], e["name"], e["args"]["bytes"]) for e in stages["on the wire"]}
        for stages in found.values()
    ]
    assert batches[0] == batches[1]
    assert {number[0] for number, *_ in batches[0]} == {"n", "p"}
    # On one clock a batch is on the wire everywhere before it is over anywhere, unless it is small: its data are in the
    # posts then, and each rank reads them by itself.
    times = [
        {e["args"]["batch"]: (e["ts"], e["ts"] + e["dur"]) for e in stages["on the wire"] if e["args"]["bytes"] >= 1 << 16}
        for stages in found.values()
    ]
    assert times[0]
    for batch, (begin, end) in times[0].items():
        other = times[1][batch]
        assert max(begin, other[0]) <= min(end, other[1]) + 1, batch

    svg = tmp_path / "picture.svg"
    subprocess.run([sys.executable, ROOT / "scripts/draw_timeline.py", path, svg], check=True)
    drawn = "".join(xml.etree.ElementTree.parse(svg).getroot().itertext())
    assert all(text in drawn for text in ("rank 0", "rank 1", "on the wire", "allreduce.")), drawn

    lines = outcome.output
    assert re.search(r"ruedarun: summary of 2 ranks, \d+\.\d\d s", lines), lines
    for stage in ("backward", "on the wire", "optimizer step"):
        assert re.search(rf"ruedarun: +{stage} +\d+\.\d+ +\d+ %", lines), lines
    assert re.search(r"communication +\d+\.\d+ s under way, \d+ % of it while backward", lines)
    assert re.search(r"in \d+ batches \(\d+ of the step plan\), [\d.]+ \w+/s", lines), lines
    assert "slowest rank" in lines
    assert len([line for line in lines.splitlines() if "ruedarun:" in line]) <= 24, "one screen"


def starts_and_stops():
    folder = pathlib.Path(os.environ["FOLDER"])
    rank, ones = hvd.rank(), np.ones(4)
    one, two, own = folder / "one.json", folder / "two.json", folder / "own.{rank}.json"
    for _ in range(2):
        hvd.start_timeline(one, mark_cycles=True)  # a second start of the same is harmless
        hvd.allreduce(ones, name="first")
    hvd.start_timeline(two)
    hvd.allreduce(ones, name="second")
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.allreduce(ones, name="third")
    if rank == 0:
        rounds, _, cycles = timelines.horovod(one)
        assert list(map(len, rounds.values())) == [2] and "allreduce.first" in rounds
        assert cycles
        assert list(timelines.horovod(two)[0]) == ["allreduce.second"]
    from rueda.torch import timeline

    timeline.start_timeline(str(own))
    with timeline.span("evaluation"), timeline.span("batch"):
        hvd.allreduce(ones, name="fourth")
    timeline.instant("saved")
    timeline.stop_timeline()
    with timeline.span("evaluation"):
        pass
    hvd.barrier()
    mine = timelines.tracks(folder / f"own.{rank}.json")[rank]
    assert sorted(event["name"] for event in mine["marks"]) == ["batch", "evaluation", "saved"]
    assert [event["name"] for event in mine["submitted"]] == ["allreduce.fourth"]
    if rank == 0:
        timeline.merge([folder / "own.0.json", folder / "own.1.json"], folder / "both.json")
        assert set(timelines.tracks(folder / "both.json")) == {0, 1}
    with raises(ValueError, "no/such/folder"):
        hvd.start_timeline("no/such/folder/{rank}.json")
    with raises(ValueError):
        timeline.merge([__file__], folder / "never.json")


def test_the_timeline_starts_and_stops_while_the_job_runs(tmp_path):
    env = {"FOLDER": str(tmp_path), "HOROVOD_TIMELINE": "DYNAMIC"}
    results(run_ranks(2, starts_and_stops, env))
    assert not pathlib.Path("DYNAMIC").exists()


def two_hosts():
    os.environ["RUEDA_HOST_ID"] = "far" if os.environ["RUEDA_RANK"] != "0" else "near"
    hvd.init()
    for _ in range(20):
        hvd.allreduce(np.ones(1000), name="x")
    return {"rank": hvd.rank()}


def test_clocks_of_several_hosts_are_compared(tmp_path):
    """The hosts are one machine here, so the truth is known: no offset."""
    pattern = str(tmp_path / "t.{rank}.json")
    results(run_ranks(3, two_hosts, {"RUEDA_TIMELINE": pattern}, manual=True))
    about = [timelines.tracks(tmp_path / f"t.{r}.json")[r]["about"] for r in range(3)]
    assert about[0]["clock_offset_ns"] == about[0]["clock_error_ns"] == 0
    for one in about[1:]:
        assert one["clock_error_ns"] > 0
        assert abs(one["clock_offset_ns"]) <= one["clock_error_ns"], one
    assert about[1]["clock_offset_ns"] == about[2]["clock_offset_ns"], "one host, one clock"


# ---- crashes ----

CRASH = """
import os, pathlib, resource, sys, numpy as np, rueda as hvd
from expect import eventually
from rueda import timeline
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
hvd.init()
for _ in range(300):
    with timeline.span("span"):
        hvd.allreduce(np.ones(10), name="a tensor with a long name " + "x" * 100)
hvd.allreduce(np.ones(7), name="last")
path = pathlib.Path(os.environ["RUEDA_TIMELINE"])
eventually(lambda: '"shape":"[7]"' in path.read_text())
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_file_of_a_process_that_crashed_is_whole(tmp_path, number):
    """Between two writes; within one it takes ruedarun, as below, to close the file."""
    path = tmp_path / "t.json"
    folders = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "RUEDA_TIMELINE": str(path), "PYTHONPATH": os.pathsep.join(folders)}
    ended = subprocess.run([sys.executable, "-c", CRASH, str(int(number))], env=env)
    assert ended.returncode == -number
    rounds, marks, _ = timelines.horovod(path)
    assert len(marks["span"]) == 300 and sorted(map(len, rounds.values())) == [1, 300]


def dies_on_rank_one():
    for step in range(200):
        hvd.allreduce(np.ones(1000), name="x")
        if step == 150 and hvd.rank() == 1:
            part = pathlib.Path(os.environ["RUEDA_TIMELINE"].replace(".json", ".rank1.json"))
            if part.exists():
                eventually(lambda: part.read_text().count('"cat":"submitted"') > 100)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("all_ranks", [False, True])
def test_timelines_outlive_a_killed_rank(tmp_path, all_ranks):
    path = tmp_path / "t.json"
    options = ["--timeline", str(path)] + ["--timeline-all-ranks"] * all_ranks
    outcome = run_ranks(2, dies_on_rank_one, options=options)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    if all_ranks:
        found = timelines.tracks(path)
        assert all(len(found[rank]["submitted"]) > 100 for rank in (0, 1))
    else:
        assert len(timelines.load(path)) > 500


# ---- who is slow ----


SLOW = re.compile(
    r"rank (\d)/2 coordinator\] rank (\d) \(pid \d+ on \S+\) is slow: of the last 10 s the others "
    r"waited ([\d.]+) s for it \((\d+) %, \d+ times\)\. (.*)\. rueda top and .*RUEDA_NAME_SLOW_RANKS=0"
)


def lags():
    """For SECONDS_OF_STEPS, the rank that LATE says is 20 ms late in each step."""
    from rueda import _marks

    late, once, doing = os.environ["LATE"], os.environ["EACH"] == "negotiated", os.environ.get("DOING")
    begun, step, going = time.monotonic(), 0, True
    while going:
        if late == "in turns" and step % 2 == hvd.rank() or late == str(hvd.rank()):
            if doing == "data":
                _marks.begin_data()
            if doing == "files":
                with open(os.environ["FILE"], "wb") as file:
                    file.write(bytes(1_000_000))
            time.sleep(0.02)
            if doing == "data":
                _marks.end_data()
        for name in ("a", "b"):
            if once:
                hvd.allgather(np.ones(1 + step % 3), name=name)
            else:
                hvd.allreduce(np.ones(100), name=name)
        step += 1
        if step % 20 == 0:
            age = np.array([time.monotonic() - begun])
            going = hvd.broadcast(age, 0, name="age")[0] < float(os.environ["SECONDS_OF_STEPS"])
    return hvd.counter("planned_batches") / step


def named_in(late, seconds, each="planned", env=()):
    env = {"LATE": late, "EACH": each, "SECONDS_OF_STEPS": str(seconds), "RUEDA_SUMMARY": "1", **dict(env)}
    outcome = run_ranks(2, lags, env)
    for planned in results(outcome):
        assert (planned > 1) == (each == "planned"), planned
    return [found.groups() for found in SLOW.finditer(outcome.output)], outcome.output


@pytest.fixture(scope="module")
def lagging(tmp_path_factory):
    """Jobs whose ranks sleep nearly all of their 13 seconds, side by side: what `named_in` gives for each."""
    jobs = {
        "0": ("0", 13),
        "1": ("1", 13, "negotiated", {"RUEDA_TRANSPORT": "tcp"}),
        "in turns": ("in turns", 13),
        "short": ("1", 3),
        "data": ("1", 13, "planned", {"DOING": "data"}),
        "files": ("0", 13, "planned", {"DOING": "files", "FILE": str(tmp_path_factory.mktemp("late") / "file")}),
    }
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        begun = {name: pool.submit(named_in, *arguments) for name, arguments in jobs.items()}
        yield lambda name: begun[name].result()


@pytest.mark.parametrize("late, speaker", [("0", "1"), ("1", "0")])
def test_a_rank_that_is_20_ms_late_for_ten_seconds_is_named_once(late, speaker, lagging):
    named, output = lagging(late)
    assert len(named) == 1 and output.count("is slow") == 1, output
    (who, rank, seconds, percent, cause), = named
    assert (who, rank) == (speaker, late), output
    assert 5 < float(seconds) <= 10 and 50 < int(percent) <= 100, output
    assert re.search(rf"slowest rank +rank {late}: others slept", output)
    assert cause.startswith("Look there for ") and ("rank 0 often writes files" in cause) == (late == "0"), cause
    share, saved = int(percent) / 100, int(re.search(r"hvd\.balance would make steps about (\d+) % shorter", cause)[1])
    assert abs(saved - 100 * share / (2 - share)) < 2, cause  # two ranks


def test_a_rank_that_is_slow_because_of_its_data_is_told_so(lagging):
    (_, rank, _, percent, cause), = lagging("data")[0]
    found = re.match(r"The cause is its data: it waited for that for (\d+) % of its time\. .*\(docs/data\.md\)$", cause)
    assert rank == "1" and found and 50 < int(found[1]) <= 100, cause
    assert "balance" not in cause


def written_bytes():
    """As the kernel counts them: those that go to a disk."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(re.search(r"(?m)^write_bytes: (\d+)", file.read())[1])


def test_a_rank_0_that_writes_files_is_told_so(lagging, tmp_path):
    before = written_bytes()
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    if written_bytes() < before + 1_000_000:
        pytest.skip(f"writes to {tmp_path} go to no disk, or are not counted")
    (_, rank, _, _, cause), = lagging("files")[0]
    found = re.match(r"It alone reads or writes files: (\d+) MB each second, where another rank had (\d+)\. ", cause) \
        or re.match("The cause is a disk: that blocked it for ", cause)  # where the kernel counts that, too
    assert rank == "0" and found and "rank 0 often" not in cause, cause


def test_ranks_that_wait_for_each_other_in_turns_are_not_named(lagging):
    _, output = lagging("in turns")
    assert "is slow" not in output
    assert re.search(r"slowest rank +rank \d: others slept", output)  # who asks is told


def test_nobody_is_named_in_the_first_ten_seconds(lagging):
    _, output = lagging("short")
    assert "is slow" not in output
    assert re.search(r"slowest rank +rank 1: others slept", output)


def lags_in_a_group():
    from ordered_groups import Group, add

    group, begun = Group("lags", [1, 0]), time.monotonic()
    data = np.zeros(4, np.float32)
    while data[0] < 2:  # both have had enough
        if hvd.rank() == 1:
            time.sleep(0.02)
        data[:] = time.monotonic() - begun > 2
        add(group, data)


def test_who_is_late_in_a_group_is_seen():
    outcome = run_ranks(2, lags_in_a_group, {"RUEDA_SUMMARY": "1"})
    assert outcome.code == 0 and re.search(r"slowest rank +rank 1: others slept", outcome.output), outcome.output


@ranks(3)
def test_tensors_of_a_process_set_are_told_apart():
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    some = hvd.add_process_set([1, 2])
    hvd.start_timeline(f"{folder}/{{rank}}.json")
    for _ in range(3):
        hvd.allreduce(np.ones(5), name="x")
        if some.included():
            hvd.allreduce(np.ones(5), name="x", process_set=some)
    hvd.stop_timeline()
    mine = timelines.tracks(f"{folder}/{hvd.rank()}.json")[hvd.rank()]
    shown = collections.Counter(event["name"] for event in mine["negotiated"])
    of_set = f"allreduce.x (process set {some.process_set_id})"
    assert shown == ({"allreduce.x": 3, of_set: 3} if some.included() else {"allreduce.x": 3})
    for event in mine["negotiated"]:
        assert (event["name"] == of_set) == (event["args"]["batch"][0] == "s"), event
    hvd.barrier()
    hvd.remove_process_set(some)
    if hvd.rank() == 0:
        shutil.rmtree(folder)


@ranks(3)
def test_marks_need_no_timeline():
    from rueda import timeline

    with timeline.span("nothing"):
        timeline.instant("nothing")
    hvd.stop_timeline()


def test_a_summary_of_one_rank_and_of_none():
    code, output = launch(
        1, [sys.executable, "-c", "import rueda; rueda.init()"], options=["--summary"]
    )
    assert code == 0 and "summary of 1 rank," in output, output
    code, output = launch(1, ["true"], options=["--summary"])
    assert code == 0 and "no rank has sent one" in output, output
