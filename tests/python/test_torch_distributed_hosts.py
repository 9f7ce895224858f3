"""Several hosts, which are network namespaces, with a c10d store and no launcher of ours: torchrun's variables."""

import os
import signal
import subprocess
import sys

import namespaces
import pytest

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

# Ranks 0 and 1 on one host, 2 and 3 on the other.
PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
if sys.argv[1] == "store":
    rank = int(os.environ.pop("RANK"))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 4, rank == 0)
    dist.init_process_group("rueda", store=store, rank=rank, world_size=4)
else:
    dist.init_process_group("rueda")
me, size = dist.get_rank(), dist.get_world_size()

def row(rank, count=3):
    return torch.arange(count) + 10.0 * rank

def same(a, b):
    assert torch.equal(a, b), (a, b)

rows = [row(rank) for rank in range(size)]
total = torch.stack(rows).sum(0)
for group, ranks in ((dist.group.WORLD, [0, 1, 2, 3]), (dist.new_group([1, 2]), [1, 2])):
    if me not in ranks:
        continue
    mine = [rows[rank] for rank in ranks]
    at, count, last = ranks.index(me), len(ranks), ranks[-1]
    all_of_it = torch.stack(mine).sum(0)
    for longer in (1, 40_000):
        x = row(me).repeat(longer)
        dist.all_reduce(x, group=group)
        same(x, all_of_it.repeat(longer))
        x = row(me).repeat(longer)
        dist.reduce(x, last, group=group)
        if me == last:
            same(x, all_of_it.repeat(longer))
        x = row(me).repeat(longer)
        dist.broadcast(x, last, group=group)
        same(x, rows[last].repeat(longer))
        parts = [torch.zeros(3 * longer) for _ in ranks]
        dist.all_gather(parts, row(me).repeat(longer), group=group)
        for part, expected in zip(parts, mine):
            same(part, expected.repeat(longer))
        out = torch.zeros(3 * longer)
        dist.reduce_scatter(out, [row(me).repeat(longer) + to for to in range(count)], group=group)
        same(out, all_of_it.repeat(longer) + count * at)
        parts = [torch.zeros(3 * longer) for _ in ranks]
        dist.all_to_all(parts, [row(me).repeat(longer) + to for to in range(count)], group=group)
        for part, expected in zip(parts, mine):
            same(part, expected.repeat(longer) + at)
        parts = [torch.zeros(3 * longer) for _ in ranks] if me == last else None
        dist.gather(row(me).repeat(longer), parts, dst=last, group=group)
        for part, expected in zip(parts or [], mine):
            same(part, expected.repeat(longer))
        out = torch.zeros(3 * longer)
        dist.scatter(out, [rows[rank].repeat(longer) for rank in ranks] if me == last else None, src=last, group=group)
        same(out, row(me).repeat(longer))
        right, left = ranks[(at + 1) % count], ranks[at - 1]
        sent = dist.isend(row(me).repeat(longer), right, group=group)
        x = torch.zeros(3 * longer)
        assert dist.recv(x, group=group) == left
        sent.wait()
        same(x, rows[left].repeat(longer))
    told = [None] * count
    dist.all_gather_object(told, {"rank": me}, group=group)
    assert told == [{"rank": rank} for rank in ranks]
    dist.barrier(group=group)
import rueda as hvd
assert hvd.local_size() == 2 and hvd.cross_size() == 2, (hvd.local_size(), hvd.cross_size())
print(f"rank {me} is right", flush=True)
if sys.argv[1] != "killed":
    sys.exit(dist.destroy_process_group())
dist.barrier()
if me == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(3))
except dist.DistBackendError as error:
    print(f"rank {me} heard of it: {error}", flush=True)
    os._exit(3)
raise AssertionError("a sum without rank 3")
"""


@pytest.fixture(scope="module")
def lab():
    hosts = namespaces.Lab(2, number=17)
    yield hosts
    hosts.close()


def start(lab, folder, port, how, key, size=4):
    """[(exit code, output)] of so many ranks, the first half on the first host."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")}
    processes = []
    for rank in range(size):
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % (size // 2), "LOCAL_WORLD_SIZE": size // 2}
        place |= {"MASTER_ADDR": lab.address(0), "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        if key is not None:
            place["RUEDA_KEY_FILE"] = key
        processes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", lab.hosts[2 * rank // size], sys.executable, str(script), how],
                env=clean | {name: str(value) for name, value in place.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("00112233445566778899aabbccddeeff" * 2)
    return path


@pytest.mark.slow
def test_a_store_of_the_callers_own_serves_too(lab, tmp_path, key):
    for rank, (code, output) in enumerate(start(lab, tmp_path, 29500, "store", key)):
        assert code == 0 and f"rank {rank} is right" in output, output


def test_every_operation_is_right_over_two_hosts_and_a_killed_rank_is_named(lab, tmp_path, key):
    ended = start(lab, tmp_path, 29501, "killed", key)
    for rank, (code, output) in enumerate(ended):
        assert f"rank {rank} is right" in output, output
        if rank == 3:
            assert code == -signal.SIGKILL, output
        else:
            assert code == 3 and "rank 3 (pid " in output.split(f"rank {rank} heard of it: ")[1], output


def test_without_a_key_every_rank_says_what_is_missing(lab, tmp_path):
    for code, output in start(lab, tmp_path, 29502, "env", None, size=2):
        assert code not in (0, None) and "RUEDA_KEY_FILE" in output, output
