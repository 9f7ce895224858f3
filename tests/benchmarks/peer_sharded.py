"""A transformer of 26 M parameters, trained in every way in the same processes and in turns: peer_sharded.py CASE...

    OPTIMIZER:WAY:FIGURE[@...]

OPTIMIZER is sgd or adam; FIGURE the step, or what of it is exposed (the step minus that without communication; half a percent of that
at least, as medians tell no less). What
is behind @ tells cases apart that are compared with different peers. Ways:

    alone        no communication
    plain        hvd.DistributedOptimizer at its defaults
    state, gradients, host       the same with shard=; host: shard="gradients", share="host"
    parameters   the same with shard="parameters", cut as for fsdp2
    ddp          DDP over Gloo
    zero         DDP and ZeroRedundancyOptimizer over Gloo
    fsdp2        fully_shard over Gloo
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import rueda.torch as hvd
from meeting import Meeting, figures, print_row, samples_of, state_of

WARM_UPS, STEPS, TURNS = 6, 18, 3
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
SHARDED = {"plain": {}, "state": {"shard": "state"}, "gradients": {"shard": "gradients"},
           "host": {"shard": "gradients", "share": "host"}, "parameters": {"shard": "parameters", "units": 0}}


def transformer():
    torch.manual_seed(3)
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(8)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 1000))


def step_of(way, kind, x):
    model = transformer()
    if way == "fsdp2":
        mesh = dist.DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
    elif way in ("ddp", "zero"):
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=1e-5)
    else:
        optimizer = kind(model.parameters(), lr=1e-5)
    if way in SHARDED:
        options = {**SHARDED[way], **({"module": model} if way == "parameters" else {})}
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def main():
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    meeting = Meeting(dist.get_rank(), dist.get_world_size())
    meeting.pin_to_core()
    print_row(meeting, about={"torch": torch.__version__})
    cases = sys.argv[1:]
    for optimizer in OPTIMIZERS:
        mine = [case for case in cases if case.startswith(optimizer)]
        ways = sorted({case.split(":")[1] for case in mine} | {"alone"}) if mine else []
        x = torch.randn(2, 16, 512)
        steps = {way: step_of(way, OPTIMIZERS[optimizer], x) for way in ways}
        before = meeting.one_way_ns()
        times = {way: [] for way in ways}
        for turn in range(TURNS):
            for way, step in steps.items():
                times[way] += samples_of(meeting, step, lambda: None, WARM_UPS if turn == 0 else WARM_UPS // 2, STEPS // TURNS, seconds=60)
        ns = [before, meeting.one_way_ns()]
        found = {way: figures(sorted(each)) for way, each in times.items()}
        for case in mine:
            _, way, figure = case.partition("@")[0].split(":")
            row = dict(found[way])
            if figure == "exposed":
                alone = found["alone"]["us"]
                row.update(step_us=row["us"], us=round(max(row["us"] - alone, 0.005 * alone), 3))
            print_row(meeting, case=case, manner="call", ns=ns, state=state_of(ns), **row)
        del steps
    meeting.barrier()
    dist.destroy_process_group()
    hvd.shutdown()


main()
