"""rueda.data on hosts that have nothing in common but files: rank 0 lists, files are dealt, the order goes on on other hosts."""

import io
import json
import sys
import tarfile

import hosts_lab
import pytest
from rueda.data import DataLoader, Files, WebDataset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(hosts_lab.why_not() is not None, reason=str(hosts_lab.why_not())),
]

# Reads an epoch and a half, or goes on from there; rank 0 writes what all ranks were given, step by step, and who looked where.
PROGRAM = """
import json, os, pathlib, sys
import rueda as hvd
from rueda.data import DataLoader, Files, WebDataset, _webdataset

hvd.init()
kind, folder, steps, size, options = sys.argv[1], *map(json.loads, sys.argv[2:])
listed, looked_at = [], []
scandir, index = os.scandir, _webdataset._index

def lists(path):
    if str(path).startswith(folder):
        listed.append(str(path))
    return scandir(path)

def looks_into(path):
    looked_at.append(os.path.basename(path))
    return index(path)

os.scandir, _webdataset._index = lists, looks_into
if kind == "files":
    source = Files(folder, suffixes=".txt", read=lambda path: int(pathlib.Path(path).read_text()))
else:
    source = WebDataset(folder, decode=lambda sample: int(sample["txt"]))
loader = DataLoader(source, size, seed=3, uneven="join", **options)
state = pathlib.Path(folder + ".state")
if state.exists():
    loader.load_state_dict(json.loads(state.read_text()))
given = []
while len(given) < steps and loader.epoch < 2:
    for batch in loader:
        given.append(batch.tolist())
        kept = loader.state_dict()
        if len(given) == steps:
            break
    else:
        kept = loader.state_dict()
every = hvd.allgather_object({"given": given, "listed": listed, "looked_at": looked_at, "host": hvd.cross_rank()})
if hvd.rank() == 0:
    pathlib.Path(folder + ".out").write_text(json.dumps(every))
    state.write_text(json.dumps(kept))
"""


def write_files(folder):
    for number in range(60):
        at = folder / f"part{number % 3}"
        at.mkdir(parents=True, exist_ok=True)
        (at / f"{number:03}.txt").write_text(str(number))
    return Files(folder, suffixes=".txt", read=lambda path: int(path[-7:-4]))


def write_tars(folder):
    folder.mkdir()
    for shard in range(6):
        with tarfile.open(folder / f"{shard}.tar", "w") as file:
            for number in range(10 * shard, 10 * shard + 10):
                text = str(number).encode()
                member = tarfile.TarInfo(f"{number:03}.txt")
                member.size = len(text)
                file.addfile(member, io.BytesIO(text))
    return WebDataset(folder, decode=lambda sample: int(sample["txt"]))


def run(hosts, places, kind, folder, steps, options):
    """What the ranks were given, by step, and what each said."""
    arguments = [json.dumps(each) for each in (str(folder), steps, 4, options)]
    with hosts_lab.Lab(hosts) as lab:
        code, output = lab.launch(places, [sys.executable, "-c", PROGRAM, kind, *arguments])
    assert code == 0, output
    every = json.loads(folder.with_suffix(".out").read_text())
    longest = max(len(one["given"]) for one in every)
    return [sum((one["given"][i] for one in every if i < len(one["given"])), []) for i in range(longest)], every


@pytest.mark.parametrize("kind, write", [("files", write_files), ("tars", write_tars)])
@pytest.mark.parametrize("options", [{}, {"processes": True, "workers": 2}], ids=["threads", "processes"])
def test_hosts_read_a_directory_that_one_of_them_lists(tmp_path, kind, write, options):
    folder = tmp_path / "data"
    source = write(folder)
    loader = DataLoader(source, 4, seed=3, uneven="join", place=(0, 1))
    expected = []
    for _ in range(2):
        for batch in loader:
            expected += batch.tolist()
    # Two hosts with two ranks each, an epoch (four steps) and a step more; then three ranks on two other hosts.
    steps, every = run(2, 2, kind, folder, 5, options)
    assert [one["host"] for one in every] == [0, 0, 1, 1]
    for rank, one in enumerate(every):
        assert bool(one["listed"]) == (rank == 0), every
    if kind == "tars":  # what is in them is found out by one rank each
        assert sorted(sum((one["looked_at"] for one in every), [])) == [f"{i}.tar" for i in range(6)]
        assert all(one["looked_at"] for one in every)
    first = sum(steps, [])
    assert first == expected[: 60 + 16]
    rest, every = run(2, "0,1,0", kind, folder, 100, options)
    assert [one["host"] for one in every] == [0, 1, 0]
    assert first + sum(rest, []) == expected
