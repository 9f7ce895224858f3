"""Models in parts give the same numbers on groups of rueda and of Gloo: pipelines, sharded, by sequence."""

import tempfile

import rueda
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from c10d_cases import default_group
from c10d_training import batches, compare
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from worlds import ranks

WORLD = "torch"


def meshes(shape, names):
    """The same mesh on groups of rueda and of Gloo."""
    ours = init_device_mesh("cpu", shape, mesh_dim_names=names)
    theirs = init_device_mesh(
        "cpu", shape, mesh_dim_names=names, backend_override={name: "gloo" for name in names}
    )
    return ours, theirs


_kept = []  # groups of Gloo live on: see c10d_training.py


def compare_meshes(run, shape, names, tolerance=1e-6):
    """run(mesh) gives a tensor."""
    with default_group():
        ours, theirs = meshes(shape, names)
        _kept.extend(theirs.get_all_groups())
        results = [run(mesh) for mesh in (ours, theirs)]
        assert dist.get_backend(ours.get_group(names[0])) == "rueda"
        assert dist.get_backend(theirs.get_group(names[0])) == "gloo"
    torch.testing.assert_close(*results, rtol=1e-5, atol=tolerance)


def layers(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))


def steps(model, rank=None):
    """Trains; the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for x in batches():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@ranks(2, 3)
def test_pipelines():
    def stage(place):
        torch.manual_seed(10 + place)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

    def run(group, schedule, stages_of_each):
        me, size = group.rank(), group.size()
        places = range(me, size * stages_of_each, size)
        models = [stage(place) for place in places]
        stages = [
            PipelineStage(model, place, size * stages_of_each, torch.device("cpu"), group=group)
            for model, place in zip(models, places)
        ]
        schedule = schedule(
            stages if stages_of_each > 1 else stages[0],
            4 * size,
            loss_fn=torch.nn.functional.mse_loss,
        )
        torch.manual_seed(1)
        x, y = torch.randn(24, 8), torch.randn(24, 8)
        for _ in range(2):
            if me == size - 1:
                schedule.step(*((x,) if me == 0 else ()), target=y, losses=[])
            else:
                schedule.step(*((x,) if me == 0 else ()))
        return torch.cat([p.grad.reshape(-1) for model in models for p in model.parameters()])

    for schedule, stages_of_each in (
        (ScheduleGPipe, 1),
        (Schedule1F1B, 1),
        (ScheduleInterleaved1F1B, 2),
    ):
        compare(lambda group: run(group, schedule, stages_of_each))


@ranks(4)
def test_hybrid_sharding():
    def second(mesh):
        model = layers()
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        losses = steps(fully_shard(model, mesh=mesh))
        return torch.cat(
            [losses, *[p.full_tensor().detach().reshape(-1) for p in model.parameters()]]
        )

    def first(mesh):
        model = FullyShardedDataParallel(
            layers(),
            device_mesh=mesh,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_id=torch.device("cpu"),
        )
        return steps(model)

    compare_meshes(second, (2, 2), ("replicate", "shard"))
    compare_meshes(first, (2, 2), ("replicate", "shard"))


@ranks(2)
def test_mixed_precision_and_kinds_of_sharding():
    def mixed(mesh):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = layers()
        fully_shard(model[0], mesh=mesh, mp_policy=policy)
        return steps(fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False))

    compare_meshes(mixed, (2,), ("shard",), 1e-4)
    for strategy in (
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    ):
        compare(
            lambda group: steps(
                FullyShardedDataParallel(
                    layers(),
                    process_group=group,
                    sharding_strategy=strategy,
                    device_id=torch.device("cpu"),
                )
            )
        )


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


@ranks(2)
def test_sequence_parallel():
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput

    def run(mesh):
        torch.manual_seed(5)
        model = Block()
        parallelize_module(
            model,
            mesh,
            {
                "": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),)
                ),
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
        x = torch.randn(2, 6, 8).chunk(2, 1)[dist.get_rank()]
        model(x).square().sum().backward()
        return torch.cat(
            [p.grad.full_tensor().reshape(-1) for p in model.parameters() if p.grad is not None]
        )

    compare_meshes(run, (2,), ("tp",))


@ranks(2, 4)
def test_context_parallel():
    """PyTorch's ring, which it has for kernels of GPUs alone, around the kernel of the CPU."""
    from torch.distributed.tensor.experimental import _context_parallel as parts
    from torch.distributed.tensor.experimental._context_parallel import _attention

    def run(mesh, is_causal):
        torch.manual_seed(9)
        whole = [torch.randn(1, 2, 16 * mesh.size(), 8) for _ in range(3)]
        wanted = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=is_causal)
        shards = [t.clone() for t in whole]
        with parts.context_parallel(mesh, buffers=shards, buffer_seq_dims=[2, 2, 2]):
            parts._disable_context_parallel_dispatcher()
            out, _ = _attention._templated_ring_attention(
                mesh.get_group(),
                2,
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
                *shards,
                is_causal=is_causal,
            )
        balanced = (
            parts._HeadTailLoadBalancer if _attention._cp_options.enable_load_balance else None
        )
        order = balanced and balanced(16 * mesh.size(), mesh.size(), torch.device("cpu"))
        (out,) = parts.context_parallel_unshard(mesh, [out], [2], order)
        torch.testing.assert_close(out, wanted)
        return out

    for method in ("allgather", "alltoall"):
        parts.set_rotate_method(method)
        for is_causal in (True, False):
            _attention._cp_options.enable_load_balance = is_causal
            compare_meshes(lambda mesh: run(mesh, is_causal), (rueda.size(),), ("cp",))


@ranks(2)
def test_checkpoints_of_sharded_models():
    with default_group():
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        mesh = init_device_mesh("cpu", (2,))

        def made(seed):
            model = fully_shard(layers(seed), mesh=mesh)
            return model, torch.optim.Adam(model.parameters(), lr=0.01)

        model, optimizer = made(3)
        steps(model)
        for x in batches(1):
            model(x).square().mean().backward()
        optimizer.step()
        weights, state = get_state_dict(model, optimizer)
        checkpoint.async_save(
            {"model": weights, "optimizer": state}, checkpoint_id=folder[0]
        ).result()
        other, its_optimizer = made(4)
        weights, state = get_state_dict(other, its_optimizer)
        checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
        set_state_dict(other, its_optimizer, model_state_dict=weights, optim_state_dict=state)
        for mine, read in zip(model.parameters(), other.parameters()):
            assert torch.equal(mine.full_tensor(), read.full_tensor())
