"""A transformer of 26 M parameters, trained in every way in the same processes and in turns: peer_sharded.py CASE...

    OPTIMIZER:WAY:FIGURE[@...]

OPTIMIZER is sgd or adam; WAY one of sharded_ways.py; FIGURE the step, or what of it is exposed (the step minus that
without communication; half a percent of that at least, as medians tell no less). What is behind @ tells cases apart that are
compared with different peers.
"""

import sys

import torch
import torch.distributed as dist

import rueda.torch as hvd
from meeting import Meeting, figures, print_row, samples_of, state_of
from sharded_ways import prepare, transformer

WARM_UPS, STEPS, TURNS = 6, 18, 3
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def step_of(way, kind, x):
    model, optimizer = prepare(way, transformer(), kind)

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
