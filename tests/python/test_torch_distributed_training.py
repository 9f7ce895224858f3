"""What trains on torch.distributed gives the same numbers on groups of rueda and of Gloo, in the same processes."""

import tempfile

import pytest
import rueda
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as differentiable
from c10d_cases import default_group
from c10d_training import batches, compare, ddp, make, parameters, train
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    optimizer_overlap_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from worlds import ranks

WORLD = "torch"


@ranks(2, 3)
def test_ddp():
    compare(lambda group: train(ddp(group)))
    compare(lambda group: train(ddp(group, gradient_as_bucket_view=True)))
    compare(lambda group: train(ddp(group, static_graph=True)))

    def odd(step):
        return step % 2 == 1

    compare(lambda group: train(ddp(group, find_unused_parameters=True), short=odd))


@ranks(2)
def test_ddp_accumulates_and_joins():
    def accumulate(group):
        model = ddp(group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.no_sync():
            for x in batches(2):
                model(x).square().mean().backward()
        model(batches(3)[2]).square().mean().backward()
        optimizer.step()
        return parameters(model)

    def uneven(group):
        model = ddp(group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for x in batches(2 + group.rank()):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return parameters(model)

    compare(accumulate)
    compare(uneven)


@ranks(2, 4)
def test_ddp_communication_hooks():
    def hooked(hook, state=lambda group: group, bucket_cap_mb=0.004):
        def run(group):
            model = ddp(group, bucket_cap_mb)
            model.register_comm_hook(state(group), hook)
            return train(model)

        return run

    compare(hooked(default_hooks.allreduce_hook))
    compare(hooked(default_hooks.fp16_compress_hook), 1e-3)  # Gloo adds in float16

    def power(group):
        return powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
        )

    # One bucket: with several Gloo runs their callbacks, which communicate, in an order of each rank's own.
    compare(hooked(powerSGD_hook.powerSGD_hook, power, 1))
    with default_group() as group:
        mine = hooked(powerSGD_hook.powerSGD_hook, power)(group)
        everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, mine)
        assert all(torch.equal(mine, other) for other in everybody)

    def overlapped(group):
        model = ddp(group)
        state = optimizer_overlap_hooks._OptimizerHookState(
            functional_optim=torch.distributed.optim.functional_sgd._FunctionalSGD(
                [], lr=0.1, _allow_empty_param_list=True
            )
        )
        model.register_comm_hook(
            None,
            optimizer_overlap_hooks._hook_then_optimizer(
                lambda _, bucket: default_hooks.allreduce_hook(group, bucket), state
            ),
        )
        for x in batches():
            model.zero_grad()
            model(x).square().mean().backward()
        return parameters(model)

    compare(overlapped)


@ranks(2)
def test_sharded_training():
    def second(group):
        model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
        torch.manual_seed(3)
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        mesh = dist.DeviceMesh.from_group(group, "cpu")
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model)
        return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])

    def first(group):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
        model = FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu"))
        train(model)
        with FullyShardedDataParallel.summon_full_params(model):
            return parameters(model).clone()

    def zero(group):
        model = ddp(group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01
        )
        return train(model, optimizer)

    compare(second)
    compare(first)
    compare(zero)


@ranks(2, 4)
def test_meshes_and_sharded_tensors():
    with default_group():
        size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("rows", "columns"))
        whole = torch.arange(32.0).view(8, 4)
        split = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert torch.equal(split.full_tensor(), whole)
        turned = split.redistribute(mesh, [Shard(1), Replicate()])
        assert torch.equal(turned.full_tensor(), whole)
        assert torch.equal((split @ split.t()).full_tensor(), whole @ whole.t())
        column = mesh["columns"].get_group()
        total = torch.ones(1)
        dist.all_reduce(total, group=column)
        assert total.item() == 2


@ranks(2)
def test_checkpoints():
    with default_group():
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(24.0).view(6, 4)
        state = {"split": distribute_tensor(whole, mesh, [Shard(0)]), "step": 5}
        checkpoint.save(state, checkpoint_id=folder[0] + "/a")
        checkpoint.async_save(state, checkpoint_id=folder[0] + "/b").result()
        for name in ("/a", "/b"):
            read = {"split": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)]), "step": 0}
            checkpoint.load(read, checkpoint_id=folder[0] + name)
            assert torch.equal(read["split"].full_tensor(), whole) and read["step"] == 5


@ranks(2)
def test_differentiable_operations():
    def run(group):
        x = torch.arange(4.0).add(group.rank()).requires_grad_()
        total = differentiable.all_reduce(x * 2, group=group).sum()
        parts = differentiable.all_gather(x, group=group)
        cut = differentiable.reduce_scatter(torch.zeros(2), [x[:2] * 3, x[2:]], group=group)
        swapped = differentiable.all_to_all_single(torch.zeros(4), x * x, group=group)
        told = differentiable.broadcast(x, 0, group=group)
        (
            total + sum(p.square().sum() for p in parts) + cut.sum() + swapped.sum() + told.sum()
        ).backward()
        return x.grad

    compare(run)


def functional(x, group, size):
    """Each functional collective once."""
    a = funcol.all_reduce(x, "sum", group)
    b = funcol.all_gather_tensor(x, 0, group)
    c = funcol.reduce_scatter_tensor(b, "avg", 0, group)
    d = funcol.all_to_all_single(b, None, None, group)
    e = funcol.broadcast(x, 0, group)
    f, g = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    h, i = funcol.all_gather_into_tensor_coalesced([x, x + 1], group)
    return a.sum() + b.sum() + c.sum() + d.sum() + e.sum() + f.sum() + g.sum() + h.sum() + i.sum()


@pytest.mark.slow
@ranks(2)
def test_functional_collectives_compiled():
    with default_group() as group:
        x = torch.arange(8.0).add(dist.get_rank())
        wanted = functional(x, group, 2)
        for backend in ("aot_eager", "inductor"):
            compiled = torch.compile(functional, backend=backend, fullgraph=True)
            torch.testing.assert_close(compiled(x, group, 2), wanted)


@ranks(2)
def test_functional_collectives():
    with default_group() as group:
        me, size = dist.get_rank(), dist.get_world_size()
        x = torch.arange(8.0).add(me)
        wanted = 2 * 28.0 + 8
        assert funcol.all_reduce(x, "sum", group).sum().item() == wanted
        assert functional(x, group, size).item() > 0
        out = torch.zeros(16)
        funcol.wait_tensor(
            torch.ops._c10d_functional.all_gather_into_tensor_out(
                x, size, group.group_name, out=out
            )
        )
        assert torch.equal(out, torch.cat([torch.arange(8.0), torch.arange(8.0) + 1]))
        y = x.clone()
        funcol.wait_tensor(torch.ops._c10d_functional.all_reduce_(y, "max", group.group_name))
        assert torch.equal(y, torch.arange(8.0) + 1)


@ranks(2)
def test_steady_steps_of_ddp_and_fsdp2_send_no_control_message():
    with default_group() as group:
        sharded = make()
        for layer in (sharded.first, sharded.second, sharded):
            fully_shard(layer, mesh=dist.DeviceMesh.from_group(group, "cpu"))
        for model in (ddp(group), ddp(group, gradient_as_bucket_view=True), sharded):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            counts = []
            for step in range(15):
                optimizer.zero_grad()
                model(batches(1)[0]).square().mean().backward()
                optimizer.step()
                counts.append(rueda.counter("control_messages"))
            assert counts[-1] == counts[9], counts
