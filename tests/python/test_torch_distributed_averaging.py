"""Replicas that communicate in other ways than DDP's own, on groups of rueda and of Gloo: hooks, joins, local SGD."""

import torch
import torch.distributed as dist
from c10d_cases import default_group
from c10d_training import batches, compare, ddp, make, parameters, train
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from worlds import ranks

WORLD = "torch"


def hooked(hook, state=lambda group: group, bucket_cap_mb=0.004):
    def run(group):
        model = ddp(group, bucket_cap_mb)
        model.register_comm_hook(state(group), hook)
        return train(model)

    return run


@ranks(2)
def test_more_hooks():
    compare(hooked(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)), 1e-3)
    compare(hooked(debugging_hooks.noop_hook))


@ranks(2)
def test_zero_inside_of_a_hook():
    """PyTorch refuses it with Gloo, which may hang in it."""
    with default_group() as group:
        model = ddp(group, 1, gradient_as_bucket_view=True)
        before = parameters(model).clone()
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.SGD,
            process_group=group,
            overlap_with_ddp=True,
            lr=0.05,
        )
        hook = ddp_zero_hook.hook_with_zero_step(
            lambda _, bucket: default_hooks.allreduce_hook(group, bucket), model, optimizer
        )
        model.register_comm_hook(None, hook)
        for x in batches(5):
            model(x).square().mean().backward()
        mine = parameters(model)
        everybody = [torch.empty_like(mine) for _ in range(group.size())]
        dist.all_gather(everybody, mine)
        assert all(torch.equal(mine, other) for other in everybody)
        assert not torch.equal(mine, before)


@ranks(2, 3)
def test_joins_of_ddp_and_zero():
    def run(group):
        model = ddp(group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9
        )
        with Join([model, optimizer]):
            for x in batches(1 + 2 * group.rank()):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        optimizer.consolidate_state_dict(to=0)
        return parameters(model)

    compare(run)


@ranks(2, 4)
def test_local_sgd():
    def run(group, averager):
        model = ddp(group)
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        model.register_comm_hook(
            post_localSGD_hook.PostLocalSGDState(group, alone, start_localSGD_iter=2),
            post_localSGD_hook.post_localSGD_hook,
        )
        optimizer = PostLocalSGDOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), averager(group)
        )
        return train(model, optimizer)

    compare(
        lambda group: run(
            group,
            lambda g: averagers.PeriodicModelAverager(period=2, warmup_steps=1, process_group=g),
        )
    )


@ranks(4)
def test_local_sgd_in_a_hierarchy():
    with default_group() as group:
        model, me = make(), group.rank()
        averager = hierarchical_model_averager.HierarchicalModelAverager(
            {2: 2, 4: 4}, process_group=group
        )
        seen = []
        for _ in range(5):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(me)
                    parameter.grad = torch.zeros_like(parameter)  # only those with one count
            averager.average_parameters(model.parameters())
            seen.append(next(model.parameters()).flatten()[0].item())
        assert seen == [1.5, me, me // 2 * 2 + 0.5, me, 1.5], seen
