"""Too little memory for sharded training is an error before the first step, which says what would fit."""

import sys

from rueda.torch.sharding._budget import ADDRESSES, Need, Room, cgroup_room, fits, message, need
from worlds import launch

ADAM = {"exp_avg": 4, "exp_avg_sq": 4}
MIB = 1 << 20


def test_needs_are_those_of_zero():
    sizes = [(MIB, 4), (MIB, 2)]
    assert need(sizes, ADAM, None, 4) == Need(6 * MIB, 12 * MIB)
    assert need(sizes, ADAM, "state", 4) == Need(6 * MIB, 3 * MIB)
    assert need(sizes, ADAM, "gradients", 4) == Need(6 * MIB // 4, 3 * MIB)
    assert need(sizes, ADAM, "state", 4, "int8").state == MIB
    assert need([(100 * MIB, 4)], ADAM, "state", 2, None, True).state < 60 * MIB
    assert need(sizes, {}, "state", 4).state == 0


def test_memory_of_a_host_is_for_all_of_its_ranks_and_addresses_of_the_heap_are_there():
    asked = Need(60, 40)
    assert fits(asked, [Room(399, "a host", 4)], 0).what == "a host"
    assert fits(asked, [Room(400, "a host", 4)], 0) is None
    assert fits(asked, [Room(99, ADDRESSES, 1)], 0).what == ADDRESSES
    assert fits(asked, [Room(40, ADDRESSES, 1)], 60) is None
    # 30 bytes of parameters take room from gradients in the heap, and give as much back where they were.
    assert fits(asked, [Room(40, ADDRESSES, 1)], 60, (30, 30)) is None
    assert fits(asked, [Room(10, ADDRESSES, 1)], 90, (30, 30)) is None
    assert fits(asked, [Room(9, ADDRESSES, 1)], 90, (30, 30)).what == ADDRESSES


def test_the_tightest_group_counts(tmp_path):
    for path, most, now, files in (("", "max", 500, 0), ("job", "1000", 700, 100), ("job/rank", "900", 300, 50)):
        folder = tmp_path / path
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{now}\n")
        (folder / "memory.stat").write_text(f"anon 5\nactive_file {files // 2}\ninactive_file {files - files // 2}\n")
    assert cgroup_room(str(tmp_path), "/job/rank") == 400
    assert cgroup_room(str(tmp_path), "/") is None
    assert cgroup_room(str(tmp_path), None) is None


def test_the_message_says_what_would_fit():
    sizes, room = [(256 * MIB, 4)], Room(2000 * MIB, "this host's memory", 1)
    text = message(sizes, ADAM, 2, need(sizes, ADAM, "state", 2), room, [room], 0)
    assert "1024 MiB for gradients and 1024 MiB for the optimizer's state" in text and "leaves: 2000 MiB" in text
    assert 'shard="state": 1024 MiB + 1024 MiB, does not fit' in text
    assert 'shard="gradients": 512 MiB + 1024 MiB, fits' in text


PROGRAM = """
import sys
import torch
import rueda.torch as hvd

hvd.init()
model = torch.nn.Linear(10_000, 10_000, bias=False)
optimizer = torch.optim.Adam(model.parameters())
try:
    hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard="state")
except MemoryError as error:
    print(f"rank {hvd.rank()}: {error}")
model = torch.nn.Linear(100, 100)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters(), shard="state")
model(torch.ones(1, 100)).sum().backward()
optimizer.step()
print("went on")
"""


def test_under_a_limit_of_addresses_it_is_an_error_on_all_ranks(tmp_path):
    program = tmp_path / "large.py"
    program.write_text(PROGRAM)
    limited = f"ulimit -v 1900000; exec {sys.executable} {program}"
    code, output = launch(2, ["bash", "-c", limited], {"RUEDA_HEAP_BYTES": str(64 << 20), "OMP_NUM_THREADS": "1"})
    assert code == 0 and output.count("went on") == 2, output
    assert "a step needs 381 MiB for gradients and 381 MiB" in output, output
    assert 'shard="gradients", state_dtype="int8"' in output and "ulimit -v" in output, output
    assert output.count("MiB for gradients") + output.count("has too little memory for a step") == 2, output
