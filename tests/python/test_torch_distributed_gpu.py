"""CUDA tensors in groups of backend rueda, without a GPU (`fake_gpu.py`)."""

import copy

import pytest
import test_torch_distributed as on_host
import torch
import torch.distributed as dist
from c10d_cases import AVG, BITWISE, MAX, MIN, PRODUCT, SUM, default_group
from fake_gpu import ENV, FakeGpuOfGroups, needs_stubs

pytestmark = needs_stubs


def _run(size, function, run_ranks):
    outcome = run_ranks(size, function, ENV)
    assert outcome.code == 0, (outcome.output, outcome.reports)


def operations_come_out_right():
    with default_group(), FakeGpuOfGroups(dist.get_rank()) as gpu:
        for group in on_host.groups():
            for later in (False, True):
                for shape in ((), (0,), (3, 4)):
                    for layout in ("plain", "transposed") if shape == (3, 4) else ("plain",):
                        for op in (SUM, AVG, MIN, MAX, PRODUCT):
                            on_host.check_reductions(group, torch.float32, shape, layout, later, op)
                        on_host.check_reductions(group, torch.int32, shape, layout, later, SUM)
                        on_host.check_reductions(group, torch.complex64, shape, layout, later, AVG)
                        on_host.check_moves(group, torch.bfloat16, shape, layout, later)
            dist.barrier(group=group)
        assert gpu.started > 100


def messages_come_out_right():
    with default_group(), FakeGpuOfGroups(dist.get_rank()):
        me, size = dist.get_rank(), dist.get_world_size()
        for count in (0, 5, 100000):
            after, before = (me + 1) % size, (me - 1) % size
            got = torch.zeros(count)
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, torch.full((count,), float(me)), after),
                    dist.P2POp(dist.irecv, got, before),
                ]
            ):
                work.wait()
            assert torch.equal(got, torch.full((count,), float(before)))
            # From whoever sends, not contiguous.
            wide = torch.zeros(count, 2)
            sent = dist.isend(torch.full((count,), me + 1.0), after, tag=7)
            assert dist.recv(wide[:, 0], tag=7) == before
            assert torch.equal(wide[:, 0], torch.full((count,), before + 1.0))
            sent.wait()


def the_host_waits_for_no_gpu():
    with default_group(), FakeGpuOfGroups(dist.get_rank(), waits=False) as gpu:
        size = dist.get_world_size()
        tensor = torch.ones(1000)
        dist.all_reduce(torch.ones(1))  # connects the ranks
        gpu.wait()
        gate = gpu.hold_up()
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait()
        assert not work.is_completed() and not work.is_success()
        assert float(tensor[0]) == 1.0
        gate.set()
        gpu.wait()  # whose default stream comes behind it
        assert work.is_completed() and work.is_success()
        assert torch.equal(tensor, torch.full((1000,), float(size)))


def futures_come_behind():
    with default_group(), FakeGpuOfGroups(dist.get_rank()):
        size = dist.get_world_size()
        for _ in range(20):
            tensor = torch.ones(100)
            work = dist.all_reduce(tensor, async_op=True)
            doubled = work.get_future().then(lambda done: done.value()[0] * 2)
            assert torch.equal(doubled.wait(), torch.full((100,), 2.0 * size))
        many = [torch.full((7,), float(i)) for i in range(4)]
        with dist._coalescing_manager(dist.group.WORLD):
            for each in many:
                dist.all_reduce(each)
        assert [float(each[6]) for each in many] == [float(size * i) for i in range(4)]
        sparse = torch.sparse_coo_tensor([[dist.get_rank(), 5]], [1.0, 2.0], (6,), check_invariants=True)
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist()[5] == 2.0 * size


def training_is_that_of_the_host():
    def train():
        torch.manual_seed(3)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3)),
            bucket_cap_mb=0.001,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(8):
            torch.manual_seed(100 * step + dist.get_rank())
            optimizer.zero_grad()
            model(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
        return copy.deepcopy([p.detach() for p in model.parameters()])

    with default_group():
        wanted = train()
        with FakeGpuOfGroups(dist.get_rank()) as gpu:
            got = train()
        assert gpu.started > 8
    # Two ranks: a sum of two numbers has one order.
    assert all(torch.equal(a, b) for a, b in zip(wanted, got))


def mistakes_are_errors():
    with default_group(), FakeGpuOfGroups(dist.get_rank()) as gpu:
        me = dist.get_rank()
        from rueda.torch.distributed import _gpus

        tensor = torch.ones(4)
        with pytest.MonkeyPatch.context() as one_on_the_host:
            if me == 0:
                one_on_the_host.setattr(_gpus, "device_of", lambda tensor: -1)
            with pytest.raises(dist.DistBackendError, match="rank 0 sent a CPU tensor.*a GPU"):
                dist.all_reduce(tensor, async_op=True).wait()
        bits = torch.full((4,), 6 + me, dtype=torch.int32)
        dist.all_reduce(bits, BITWISE[0])  # NCCL has none: by rueda's kernel
        assert bits.tolist() == [6] * 4
        elsewhere = torch.empty(4, device="meta")
        outputs = [torch.empty(4) for _ in range(dist.get_world_size())]
        for call in (
            lambda: dist.all_gather([*outputs[1:], elsewhere], tensor),
            lambda: dist.all_gather_into_tensor(torch.empty(8), torch.empty(4, device="meta")),
            lambda: dist.reduce_scatter(tensor, [*outputs[1:], elsewhere]),
            lambda: dist.all_to_all(outputs, [*outputs[1:], elsewhere]),
            lambda: dist.all_to_all_single(torch.empty(4, device="meta"), tensor),
        ):
            with pytest.raises(ValueError, match="must be on one device, not on"):
                call()
        dist.all_reduce(tensor)
        assert float(tensor[0]) == dist.get_world_size()
        gpu.wait()


def all_of_two_ranks():
    the_host_waits_for_no_gpu()
    futures_come_behind()
    training_is_that_of_the_host()
    mistakes_are_errors()


def all_of_three_ranks():
    operations_come_out_right()
    messages_come_out_right()


def test_operations_on_one_gpu(run_ranks):
    _run(1, operations_come_out_right, run_ranks)


def test_waiting_futures_training_and_mistakes_on_two_gpus(run_ranks):
    _run(2, all_of_two_ranks, run_ranks)


def test_operations_and_messages_on_three_gpus(run_ranks):
    _run(3, all_of_three_ranks, run_ranks)
