"""Timelines as Perfetto traces: what they say, beside the JSON of the same events; cut, merged, compressed, shortened."""

import collections
import gzip
import os
import pathlib
import random
import signal
import subprocess
import time
import zlib

import numpy as np
import perfetto_traces as traces
import pytest
import rueda as hvd
import timelines
from expect import eventually, raises
from rueda import timeline
from worlds import results, run_ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]
FORMS = ROOT / "build/release/tests/runtime/timeline_forms"
FORM_ENDS = ["pftrace", "perfetto-trace", "pftrace.gz"]


def nanos(micros):
    return round(micros * 1000)


def of_json(path):
    """The same as `perfetto_traces.read`, of a JSON file in tracks."""
    rows, found, arrows = {}, {}, collections.defaultdict(list)
    for event in timelines.load(path):
        rank, kind = event["pid"], event["ph"]
        if event["name"] == "process_name":
            about = event["args"]
            name = about.pop("name")
            found[rank] = traces.Rank(name, [f"{key}={value}" for key, value in about.items()])
        elif event["name"] == "thread_name" and kind == "M":
            rows[rank, event["tid"]] = event["args"]["name"].rstrip("0123456789").strip()
        elif kind == "X":
            begin = nanos(event["ts"])
            end = begin + nanos(event["dur"])
            track = rows[rank, event["tid"]]
            assert track == event["cat"]
            found[rank].slices.append(traces.Slice(track, event["name"], begin, end, event["args"]))
        elif kind == "i":
            found[rank].instants.append((event.get("cat"), event["name"], nanos(event["ts"])))
        elif kind == "C":
            found[rank].counters.append((event["name"], nanos(event["ts"]), event["args"]["bytes"]))
        elif kind in "sf":
            arrows[rank, event["id"]].append((kind, rows[rank, event["tid"]], nanos(event["ts"])))
    return found, arrows


def ordered(slices):
    return sorted((s.track, s.begin, s.end, s.name, sorted(s.args.items())) for s in slices)


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """A folder with the same workload of two ranks in each form; and {file: (bytes, seconds)}."""
    folder, said = tmp_path_factory.mktemp("forms"), {}
    for rank in range(2):
        lines = subprocess.run([FORMS, folder, str(rank), "40", "3"], check=True, capture_output=True, text=True)
        for line in lines.stdout.splitlines():
            name, size, seconds = line.split()
            said[name] = int(size), float(seconds)
    return folder, said


def test_a_trace_says_what_the_json_of_the_same_events_says(forms):
    folder, _ = forms
    for rank in range(2):
        wanted, arrows = of_json(folder / f"{rank}.json")
        (got,) = traces.read(traces.load(folder / f"{rank}.pftrace")).values()
        (wanted,) = wanted.values()
        assert (got.name, got.about) == (wanted.name, wanted.about)
        assert got.about["clock_offset_ns"] == rank * 5_000_123
        assert ordered(got.slices) == ordered(wanted.slices)
        assert {s.track for s in got.slices} == set(timelines.STAGES)
        assert any(s.args.get("open") for s in got.slices)
        key = lambda instant: (instant[0] or "", *instant[1:])  # noqa: E731
        assert sorted(got.instants, key=key) == sorted(wanted.instants, key=key)
        assert {name for _, name, _ in got.instants} >= {"CYCLE_START", "3 events were lost", "plain", ""}
        assert got.counters == sorted(wanted.counters, key=lambda counter: counter[1])
        assert len(got.starts) == len(arrows) > 1000
        for (_, number), ends in arrows.items():
            (_, track, begin), (_, last, _) = sorted(ends, reverse=True)
            start, end = got.slices[got.starts[number]], got.slices[got.ends[number]]
            assert (start.track, start.begin, end.track) == (track, begin, last)


def test_a_trace_is_smaller_than_the_json_and_written_in_no_more_time(forms):
    _, said = forms
    for rank in range(2):
        size, seconds = said[f"{rank}.json"]
        assert said[f"{rank}.pftrace"][0] <= 0.3 * size, said
        assert said[f"{rank}.pftrace"][1] <= seconds, said


def test_a_compressed_trace_is_the_same(forms):
    folder, _ = forms
    compressed = (folder / "0.pftrace.gz").read_bytes()
    assert gzip.decompress(compressed) == (folder / "0.pftrace").read_bytes()
    at = members = 0
    while at < len(compressed):  # each says how long it is
        end = at + traces.length_of_member(compressed, at)
        stream = zlib.decompressobj(31)
        stream.decompress(compressed[at:end])
        assert stream.eof and not stream.unused_data
        at, members = end, members + 1
    assert at == len(compressed) and members > 1


def counts(rank):
    return len(rank.slices), len(rank.instants), len(rank.counters)


def test_a_trace_that_is_cut_anywhere_is_readable_up_to_there(tmp_path):
    subprocess.run([FORMS, tmp_path, "0", "1"], check=True, stdout=subprocess.DEVNULL)
    data = traces.load(tmp_path / "0.pftrace")
    ends = [end for end, _ in traces.packets(data)]
    assert len(ends) > 500 and ends[-1] == len(data)
    (whole,) = traces.read(data).values()
    seen = (0, 0, 0)
    for end in ends[1::7] + ends[-1:]:
        (part,) = traces.read(data[:end], is_cut=True).values()
        assert part.slices == whole.slices[: len(part.slices)]
        assert all(now >= before for now, before in zip(counts(part), seen))
        seen = counts(part)
    assert seen == counts(whole)
    chance = random.Random(7)
    for cut in [chance.randrange(len(data)) for _ in range(300)]:
        assert [end for end, _ in traces.packets(data[:cut])] == [end for end in ends if end <= cut]


# ---- real jobs ----


def works():
    for step in range(30):
        with timeline.span("step"):
            hvd.allreduce(np.ones(1000, np.float32), name="x")
    return hvd.rank()


@pytest.mark.parametrize("end", FORM_ENDS)
def test_all_ranks_in_one_trace(tmp_path, end):
    path = tmp_path / f"all.{end}"
    outcome = run_ranks(2, works, options=["--timeline", str(path), "--timeline-all-ranks", "--timeline-mark-cycles"])
    assert sorted(results(outcome)) == [0, 1]
    assert list(tmp_path.iterdir()) == [path], "the ranks' parts have become one file"
    found = traces.read(traces.load(path))
    assert set(found) == {0, 1}
    for number, rank in found.items():
        assert rank.name.startswith(f"rank {number} (pid ")
        tracks = collections.Counter(s.track for s in rank.slices)
        assert tracks["marks"] == 30 and tracks["negotiated"] == tracks["submitted"] >= 30, tracks
        assert {s.name for s in rank.slices if s.track == "on the wire"} >= {"allreduce.x"}
        assert rank.counters[-1][2] >= 30 * 4000
    assert any(name == "CYCLE_START" for _, name, _ in found[0].instants)


def test_rank_0_alone_writes_tracks_too(tmp_path):
    path = tmp_path / "alone.pftrace"
    results(run_ranks(2, works, {"HOROVOD_TIMELINE": str(path)}))
    assert list(tmp_path.iterdir()) == [path]
    assert list(traces.read(traces.load(path))) == [0]


def two_hosts():
    os.environ["RUEDA_HOST_ID"] = "far" if os.environ["RUEDA_RANK"] != "0" else "near"
    hvd.init()
    for _ in range(20):
        hvd.allreduce(np.ones(1000), name="x")
    return {"rank": hvd.rank()}


def test_two_hosts_in_one_trace(tmp_path):
    """The hosts are one machine here, so the truth is known: no offset."""
    path = tmp_path / "all.pftrace.gz"
    options = ["--timeline", str(path), "--timeline-all-ranks"]
    results(run_ranks(3, two_hosts, options=options, manual=True))
    assert list(tmp_path.iterdir()) == [path]
    found = traces.read(traces.load(path))
    assert set(found) == {0, 1, 2}
    offset, error = ([found[rank].about[f"clock_{key}_ns"] for rank in range(3)] for key in ("offset", "error"))
    assert offset[0] == error[0] == 0 and offset[1] == offset[2] and error[1] == error[2] > 0
    assert abs(offset[1]) <= error[1]
    times = [{s.args["batch"]: s for s in r.slices if s.track == "on the wire"} for r in found.values()]
    assert set(times[0]) == set(times[1]) == set(times[2]) and len(times[0]) >= 20


def test_files_of_ranks_are_merged(forms, tmp_path):
    folder, _ = forms
    wanted = b"".join(traces.load(folder / f"{rank}.pftrace") for rank in range(2))
    for into in ("all.pftrace", "all.perfetto-trace.gz"):
        timeline.merge([folder / "0.pftrace.gz", folder / "1.pftrace"], tmp_path / into)
        assert traces.load(tmp_path / into) == wanted
    assert set(traces.read(wanted)) == {0, 1}
    with raises(ValueError, "of one form"):
        timeline.merge([folder / "0.pftrace"], tmp_path / "all.json")
    for name in ("0.pftrace", "0.pftrace.gz"):
        broken = tmp_path / name
        for data in ((folder / name).read_bytes()[:-1], b"[\n]\n", b"\x0a", b"\x0a" + b"\xff" * 20):
            broken.write_bytes(data)
            with raises(ValueError, f"{name} is no timeline"):
                timeline.merge([broken], tmp_path / "never.pftrace")
    assert not (tmp_path / "never.pftrace").exists()


def dies_on_rank_one():
    part = pathlib.Path(os.environ["RUEDA_TIMELINE"].replace("t.", "t.rank1."))
    for step in range(100_000):
        hvd.allreduce(np.ones(1000), name="x")
        if hvd.rank() == 1 and step == 200:
            eventually(lambda: part.stat().st_size > 2000)
            with open(part, "ab") as file:  # as if a write had been cut
                file.write(b"\x0a\x7f" if part.suffix == ".pftrace" else b"\x1f\x8b\x08")
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("end", ["pftrace", "pftrace.gz"])
def test_a_trace_outlives_a_killed_rank(tmp_path, end):
    path = tmp_path / f"t.{end}"
    outcome = run_ranks(2, dies_on_rank_one, options=["--timeline", str(path), "--timeline-all-ranks"])
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    assert list(tmp_path.iterdir()) == [path]
    found = traces.read(traces.load(path), is_cut=True)
    assert set(found) == {0, 1} and len(found[0].slices) > 600
    assert found[1].slices or end.endswith("gz"), "compressed, the last second waited in memory"


KEPT = 0.3


def goes_on():
    folder, begun, steps = pathlib.Path(os.environ["FOLDER"]), {}, {}
    for end in ["json", *FORM_ENDS]:
        name = f"t.{{rank}}.{end}"
        hvd.start_timeline(folder / name)
        mine, begun[end] = folder / name.format(rank=hvd.rank()), time.monotonic_ns()
        going, files, ends = True, set(), []
        while going:
            with timeline.span("step"):
                time.sleep(0.001)  # else there are more events than a machine in use can write
                age = np.array([time.monotonic_ns() - begun[end]])
                going = hvd.broadcast(age, 0, name="age")[0] < 6 * KEPT * 1e9
            ends.append(time.monotonic_ns())
            files.add(mine.stat().st_ino)
        hvd.stop_timeline()
        kept_since = time.monotonic_ns() - KEPT * 1e9
        steps[end] = [at for at in ends if at > kept_since]
        assert len(files) > 1, "it was written anew meanwhile"
    return {"begun": begun, "steps": steps, "rank": hvd.rank()}


def test_the_last_seconds_are_kept(tmp_path):
    env = {"FOLDER": str(tmp_path), "RUEDA_TIMELINE_SECONDS": str(KEPT)}
    for told in results(run_ranks(2, goes_on, env)):
        rank = told["rank"]
        for end, begun in told["begun"].items():
            path = tmp_path / f"t.{rank}.{end}"
            read = of_json(path)[0] if end == "json" else traces.read(traces.load(path), is_cut=True)
            slices = read[rank].slices
            assert {"marks", "negotiated", "on the wire"} <= {s.track for s in slices}
            assert {"step", "broadcast.age"} <= {s.name for s in slices}
            assert min(s.end for s in slices) > begun + 2 * KEPT * 1e9, "what came first has been left out"
            kept = sorted(s.end for s in slices if s.name == "step")
            wanted = told["steps"][end]  # the times just after the steps that ended in the last seconds
            assert len(kept) >= len(wanted)
            assert all(at <= after for at, after in zip(kept[-len(wanted) :], wanted)), end
    assert len(list(tmp_path.iterdir())) == 8, "nothing else is left"


def refused():
    folder = pathlib.Path(os.environ["FOLDER"])
    for end in ("pftrace", "pftrace.gz"):
        with raises(ValueError, "no/such/folder"):
            hvd.start_timeline(f"no/such/folder/{{rank}}.{end}")
    if hvd.rank() == 0:
        for end in ("pftrace", "pftrace.gz"):
            link = folder / f"full.{end}"
            link.symlink_to("/dev/full")
            with raises(ValueError, "cannot write the timeline"):
                hvd.start_timeline(link)


def test_files_that_cannot_be_written_are_errors(tmp_path):
    results(run_ranks(2, refused, {"FOLDER": str(tmp_path)}))


@pytest.mark.parametrize("value", ["-1", "ten", "nan"])
def test_seconds_that_are_none_are_errors(value):
    outcome = run_ranks(1, works, options=["--timeline-seconds", value])
    assert outcome.code != 0 and "--timeline-seconds" in outcome.output, outcome.output
    outcome = run_ranks(1, works, {"RUEDA_TIMELINE_SECONDS": value})
    assert outcome.code != 0 and "RUEDA_TIMELINE_SECONDS" in outcome.output, outcome.output
