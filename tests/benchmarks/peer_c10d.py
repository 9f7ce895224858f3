"""torch.distributed on rueda and on Gloo, in the same processes and in turns: peer_c10d.py CASE...

A case of this list with "gloo/" before it is the same on Gloo; the two are measured as one, because a change of the
machine's state between them would show in one alone.

    OPERATION:MANNER:BYTES       a collective of PyTorch, MANNER blocking or async
    barrier:blocking:0
    ddp:MODEL:FORM               a training step, FORM copied or views (gradient_as_bucket_view); small: 0.4 M parameters
    exposed:MODEL:FORM           the same minus the step without communication
    fsdp2:MODEL:FORM             FORM plain, or shared (buffers of the process group)
    groups:64                    64 groups of 2 of the ranks, all created
    import:torch                 what an installed rueda adds to `import torch`, in ms
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from meeting import Meeting, effort_of, figures, print_row, samples_of, state_of
from models import Chain, blocks, network, resnet_shapes, small_network

UNITS = {"K": 1 << 10, "M": 1 << 20}
GROUPS = {}
TURNS = 3


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def operation_of(name, group, size):
    """A function that calls it; ``size`` is that of a rank's larger buffer of float32."""
    part_count = max(1, size // 4 // dist.get_world_size())
    part, whole = torch.ones(part_count), torch.ones(part_count * dist.get_world_size())
    calls = {
        "all_reduce": lambda later: dist.all_reduce(whole, group=group, async_op=later),
        "broadcast": lambda later: dist.broadcast(whole, 0, group=group, async_op=later),
        "reduce_scatter": lambda later: dist.reduce_scatter_single(part, whole, group=group, async_op=later),
        "all_gather": lambda later: dist.all_gather_single(whole, part, group=group, async_op=later),
        "all_to_all": lambda later: dist.all_to_all_single(torch.empty_like(whole), whole, group=group, async_op=later),
        "barrier": lambda later: dist.barrier(group=group, async_op=later),
    }
    return calls[name]


def collective(case, group):
    name, manner, text = case.split(":")
    size = bytes_of(text)
    call = operation_of(name, group, size)
    if manner == "async":
        return lambda: call(True).wait(), effort_of(size)
    return lambda: call(False), effort_of(size)


def step_of(model, x, optimizer_of=lambda p: torch.optim.SGD(p, lr=1e-6)):
    optimizer = optimizer_of(model.parameters())

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def data_of(name):
    if name.startswith("resnet50"):
        milliseconds = float(name.partition("-")[2] or 0)
        return Chain(resnet_shapes(), milliseconds / 1e3, 1.0), torch.ones(1, requires_grad=True)
    if name == "small":
        return small_network(), torch.randn(32, 256)
    if name == "network":
        return network(), torch.randn(32, 768)
    return blocks(8, 1250), torch.randn(32, 1250)


def training(case, group):
    kind, name, form = case.split(":")
    model, x = data_of(name)
    if kind in ("ddp", "exposed"):
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=form == "views")
        return step_of(model, x), (8, 9)
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if form == "shared":
        for part in (*model, model):
            part.set_allocate_memory_from_process_group_for_comm(True)
    return step_of(model, x), (8, 9)


def in_turns(meeting, runs):
    """Sorted microseconds of each of ``runs``: (function, (warm-ups, iterations))."""
    found = [[] for _ in runs]
    for turn in range(TURNS):
        for times, (run, (warm_ups, iterations)) in zip(found, runs):
            warm_ups = warm_ups if turn == 0 else min(warm_ups, 5)
            times += samples_of(meeting, run, lambda: None, warm_ups, max(1, iterations // TURNS))
    return [sorted(times) for times in found]


def measure(meeting, case):
    """Rows of a case and of its peer's."""
    before = meeting.one_way_ns()
    kind = case.split(":")[0]
    if kind in ("ddp", "exposed", "fsdp2"):
        runs = [training(case, GROUPS[backend]) for backend in ("rueda", "gloo")]
        if kind == "exposed":
            model, x = data_of(case.split(":")[1])
            runs.append((step_of(model, x), (8, 9)))
    else:
        runs = [collective(case, GROUPS[backend]) for backend in ("rueda", "gloo")]
    times = in_turns(meeting, runs)
    ns = [before, meeting.one_way_ns()]
    rows = [{**figures(each), "manner": "call", "ns": ns, "state": state_of(ns)} for each in times]
    if kind == "exposed":
        for row in rows[:2]:
            row.update(step_us=row["us"], us=round(max(row["us"] - rows[2]["us"], 0.1), 3))
    for row, prefix in zip(rows, ("", "gloo/")):
        print_row(meeting, case=prefix + case, **row)


def create_groups(meeting, case):
    """A pair of ranks each, as many as there are pairs, again and again."""
    count, ranks = int(case.split(":")[1]), dist.get_world_size()
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    wanted = [list(pairs[i % len(pairs)]) for i in range(count)]
    for turn, (prefix, backend) in enumerate((("", "rueda"), ("gloo/", "gloo"))):
        meeting.barrier()
        begin = time.perf_counter()
        made = [dist.new_group(each, backend=backend) for each in wanted]
        meeting.put(0, (time.perf_counter() - begin) * 1e6)
        meeting.barrier()
        spent = meeting.slowest(0)
        meeting.barrier()
        for group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        print_row(meeting, case=prefix + case, us=round(spent, 1), p99_us=0, iterations=1, manner="call", ns=[0], state="none")


def import_time(meeting, case):
    """Milliseconds that the entry point adds, on rank 0: with it and without, in turns."""
    if meeting.rank == 0:
        times = {"0": [], "1": []}
        for _ in range(5):
            for load, found in times.items():
                env = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD=load)
                begin = time.perf_counter()
                subprocess.run([sys.executable, "-c", "import torch"], env=env, check=True)
                found.append((time.perf_counter() - begin) * 1e3)
        added = sorted(times["1"])[2] - sorted(times["0"])[2]
        print_row(meeting, case=case, us=round(added, 2), p99_us=0, iterations=5, manner="call", ns=[0], state="none")
    meeting.barrier()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("rueda")
    GROUPS.update(rueda=dist.group.WORLD, gloo=dist.new_group(backend="gloo"))
    meeting = Meeting(dist.get_rank(), dist.get_world_size())
    print_row(meeting, about={"torch": torch.__version__})
    special = {"groups": create_groups, "import": import_time}
    for case in [each for each in sys.argv[1:] if not each.startswith("gloo/")]:
        kind = case.split(":")[0]
        if kind not in special:
            meeting.pin_to_core()
            measure(meeting, case)
        else:
            special[kind](meeting, case)
    meeting.barrier()
    dist.destroy_process_group()


main()
