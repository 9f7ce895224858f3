#!/usr/bin/env python3
"""Measures what a timeline costs a training step, with it off and on in turns within one job.

    ruedarun -np 2 python scripts/timeline_cost.py [--rounds 30] [--steps 50]

Nothing else may run meanwhile. Prints the median of the rounds' ratios (on / off), the least and the most, for a step with
many small gradients and one with few large ones, on rank 0's file in Horovod's format and on every rank's in tracks, as
JSON and as a Perfetto trace, compressed and not; and the bytes of rank 0's file for each step.
"""
import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import rueda.torch as hvd

MODELS = {"40 small layers": [64] * 41, "3 large layers": [1000, 2000, 2000, 10]}


def trainer(widths):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    model = torch.nn.Sequential(*layers)
    names = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), named_parameters=names)
    batch = torch.randn(32, widths[0])

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def seconds_of(step, count):
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begin) / count


def ratios(step, path, rounds, count):
    found = []
    for number in range(rounds):
        times = {}
        for on in (number % 2 == 0, number % 2 != 0):
            if on:
                hvd.start_timeline(path)
            times[on] = seconds_of(step, count)
            if on:
                hvd.stop_timeline()
        found.append(times[True] / times[False])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for model, widths in MODELS.items():
            step = trainer(widths)
            seconds_of(step, args.steps)  # until its step plan runs
            for file in ("t.json", "t.{rank}.json", "t.{rank}.pftrace", "t.{rank}.pftrace.gz"):
                path = Path(folder) / file
                found = ratios(step, path, args.rounds, args.steps)
                if hvd.rank() == 0:
                    size = Path(str(path).format(rank=0)).stat().st_size / args.steps
                    print(
                        f"{model}, {file}: {statistics.median(found):.4f} ({min(found):.4f} to {max(found):.4f}), "
                        f"{size:.0f} bytes per step"
                    )


if __name__ == "__main__":
    main()
