"""memory_report: what is counted, once, of each rank and of each host; what --summary prints of it."""

import re

import pytest
import rueda.torch as hvd
import torch
from rueda import _process_memory
from rueda.torch import _memory_table
from worlds import launch, ranks

WORLD = "torch"


def model_of(width=64):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))


def trained(model, optimizer):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


# ---- of one process ----


def test_tied_parameters_views_and_state_count_once():
    model = model_of()
    model[2].weight = model[0].weight
    model.register_buffer("view", model[0].weight.detach()[3])
    model.register_buffer("table", torch.zeros(1000))
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer)
    report = hvd.memory_report(model, optimizer, collective=False)
    (mine,) = report.ranks
    assert mine.parameters == bytes_of(model.parameters()) == 4 * (64 * 64 + 2 * 64)
    assert mine.buffers == 4000
    assert mine.gradients == mine.parameters
    assert mine.state == 2 * mine.parameters + 3 * 4  # and three counts of steps
    assert mine.activations is None
    assert mine.resident_peak >= mine.resident > 0
    assert 0 < mine.proportional <= mine.resident + (1 << 20)
    (host,) = report.hosts
    assert (host.parameters, host.gradients, host.state) == mine[2:3] + mine[4:6]
    text = str(report)
    assert "memory, in " in text and "rank 0" in text and "(1 rank)" in text
    assert len({len(line) for line in text.splitlines()}) == 1


def test_sparse_gradients_meta_parameters_and_no_gradients():
    model = torch.nn.Embedding(1000, 10, sparse=True)
    model(torch.tensor([1, 2, 3])).sum().backward()
    (mine,) = hvd.memory_report(model, collective=False).ranks
    assert mine.gradients == 3 * 8 + 3 * 10 * 4
    (mine,) = hvd.memory_report(torch.nn.Linear(9, 9, device="meta"), collective=False).ranks
    assert mine.parameters == mine.gradients == mine.state == 0
    (mine,) = hvd.memory_report([torch.nn.Linear(2, 2, bias=False)] * 2, collective=False).ranks
    assert mine.parameters == 16


def test_activations_are_what_is_kept_for_backward():
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(50, 50), torch.nn.Sigmoid())))
    x = torch.ones(20, 50)
    with hvd.measure_activations(model) as activations:
        for _ in range(2):
            loss = model(x).sum()
            assert activations.now == 5 * x.nbytes  # the input, and each sigmoid's result for itself and the next
            loss.backward()
            assert activations.now == 0
        model(x)  # its graph is dropped
        assert activations.now == 0
    assert activations.peak == 5 * x.nbytes
    (mine,) = hvd.memory_report(model, activations=activations, collective=False).ranks
    assert mine.activations == activations.peak
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for _ in range(2):
        model(x).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters()))


def test_second_derivatives_are_right_where_activations_are_measured():
    x = torch.tensor([0.3, -2.0], dtype=torch.float64, requires_grad=True)
    with hvd.measure_activations() as activations:
        (first,) = torch.autograd.grad(x.exp().sigmoid().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    (expected,) = torch.autograd.grad(x.exp().sigmoid().sum(), x, create_graph=True)
    assert torch.equal(first, expected)
    assert torch.equal(second, torch.autograd.grad(expected.sum(), x)[0])
    assert activations.peak > 0


@ranks(2)
def test_the_memory_of_a_compression_is_state():
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), compression=hvd.Compression.topk(0.1)
    )
    trained(model, optimizer)
    report = hvd.memory_report(model, optimizer)
    assert all(each.state == 64 * 64 * 4 for each in report.ranks)


def test_places_in_shared_memory_are_the_same_for_all_who_map_it():
    lines = [
        "1000-2000 rw-s 00003000 00:01 77 /memfd:rueda-heap (deleted)",
        "2000-3000 rw-p 00000000 00:00 0",
        "9000-a000 rw-s 00001000 00:01 77 /memfd:rueda-heap (deleted)",
    ]
    maps = _process_memory.SharedMappings(lines)
    assert maps.place(0x1010) == ("00:01", 77, 0x3010)
    assert maps.place(0x9010) == ("00:01", 77, 0x1010)
    assert [maps.place(at) for at in (0xFFF, 0x2000, 0x2FFF, 0xA000)] == [None] * 4
    assert _process_memory.kibibytes("Name:\tx\nVmHWM:\t  12 kB\nThreads:\t3\n") == {"VmHWM": 12288}
    assert _process_memory.read_kibibytes("/proc/nothing") == {}


@pytest.mark.parametrize(
    "values, unit, cell", [([], "kB", "-"), ([999], "kB", "1.0"), ([2e6], "MB", "2.0"), ([3e15], "TB", "3000.0")]
)
def test_the_unit_is_that_of_the_largest_value(values, unit, cell):
    lines = _memory_table.table("memory", ["a"], [("x", values or [None])])
    assert lines[0].startswith(f"memory, in {unit}")
    assert lines[1].split()[-1] == cell


# ---- of several ranks ----


@ranks(1, 2, 3)
def test_every_rank_gets_the_table_of_all():
    rank, size = hvd.rank(), hvd.size()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    trained(model, optimizer)
    own = hvd.zeros(100_000 * (rank + 1))
    report = hvd.memory_report(model, optimizer)
    assert [each.rank for each in report.ranks] == list(range(size))
    assert all(each.parameters == each.gradients == each.state for each in report.ranks)
    assert report.ranks[rank].heap >= own.nbytes
    assert all(each.heap_limit >= each.heap_peak >= each.heap > 0 for each in report.ranks)
    (host,) = report.hosts
    assert host.ranks == list(range(size))
    assert host.parameters == size * report.ranks[0].parameters
    assert host.heap == sum(each.heap for each in report.ranks)
    assert hvd.allgather_object(str(report)) == [str(report)] * size


@ranks(2, 3)
def test_what_all_ranks_of_a_host_have_together_counts_once_for_the_host():
    size = hvd.size()
    counts = {}
    for share in (None, "host"):
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), shard="gradients", share=share
        )
        trained(model, optimizer)
        report = hvd.memory_report(model, optimizer)
        counts[share] = report.hosts[0]
        whole = bytes_of(model.parameters())
        padding = 4096 * size
        for each in report.ranks:
            assert whole <= each.parameters <= whole + padding
            assert 2 * whole / size <= each.state <= 2 * (whole + padding) / size + 8
            assert whole / size <= each.gradients <= (whole + padding) / size
        hvd.barrier()
        del model, optimizer
    assert counts[None].parameters == size * counts["host"].parameters
    assert counts[None].state == counts["host"].state


@ranks(2, 3)
def test_shares_and_what_is_gathered_count_with_sharded_parameters():
    model = torch.nn.Sequential(*(torch.nn.Linear(400, 400, bias=False) for _ in range(6)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), shard="parameters", module=model, units=[torch.nn.Linear]
    )
    for _ in range(2):
        model(torch.ones(2, 400)).sum().backward()
        optimizer.step()
    whole, layer = 6 * 400 * 400 * 4, 400 * 400 * 4
    report = hvd.memory_report(model, optimizer)
    for each in report.ranks:
        assert whole / hvd.size() + 2 * layer <= each.parameters <= whole / hvd.size() + 2.2 * layer
        assert whole / hvd.size() <= each.gradients <= whole / hvd.size() + 2 * layer + 2.2 * layer / hvd.size()
        assert each.state == pytest.approx(2 * whole / hvd.size(), rel=0.01)


@ranks(2)
def test_state_that_is_kept_elsewhere_counts_as_it_is_kept():
    found = {}
    for options in ({}, {"state_dtype": "bf16"}, {"offload": "/tmp"}):
        model = torch.nn.Linear(400, 400, bias=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), shard="state", **options)
        model(torch.ones(2, 400)).sum().backward()
        optimizer.step()
        found[next(iter(options), None)] = hvd.memory_report(model, optimizer).ranks[0].state
    assert found[None] == pytest.approx(2 * 400 * 400 * 4 / 2, rel=0.01)
    assert found["state_dtype"] == pytest.approx(found[None] / 2, rel=0.02)
    assert found["offload"] < 1000


@ranks(2)
def test_of_a_part_of_the_ranks():
    rank = hvd.rank()
    alone = hvd.add_process_set([1])
    if rank == 1:
        report = hvd.memory_report(process_set=alone)
        assert [each.rank for each in report.ranks] == [1]
    hvd.remove_process_set(alone)


# ---- the summary ----


def test_the_summary_says_what_memory_ranks_had(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import rueda as hvd\nhvd.init()\nx = hvd.zeros(5_000_000, 'float32')\ndel x\nhvd.barrier()\n"
    )
    code, output = launch(2, ["python", script], options=["--summary"])
    assert code == 0
    assert re.search(r"memory +resident, at most: [\d.]+ MB \(rank \d\) to [\d.]+ MB", output), output
    assert "of the shared heap: 20.0 MB (rank 0) to 20.0 MB (rank 0)" in output
    assert re.search(r"2 ranks: [\d.]+ MB together", output)


def test_the_summary_of_ranks_that_never_called_init():
    code, output = launch(2, ["python", "-c", "x = b'x' * 50_000_000"], options=["--summary"])
    assert code == 0
    found = re.search(r"memory +resident, at most: ([\d.]+) MB", output)
    assert "no rank has sent one" in output and float(found[1]) >= 50, output
