#!/usr/bin/env python3
"""Measures what Python costs: a collective's call, and a training step with many gradients.

    ruedarun -np 2 python scripts/python_cost.py [--rounds 9] [--json FILE]

Nothing else may run meanwhile, and there must be a core for each rank. Every figure is the median over the rounds, the
kinds of call taking turns. "the library alone" is the same operation as a persistent request, through the C ABI: what is above it is
Python. A step is one of a network whose 160 gradients have 16 elements each: with DistributedOptimizer, without, and the
library's share of the difference.
"""
import argparse
import ctypes
import json
import os
import statistics
import time

import numpy
import torch

import rueda
import rueda.torch as hvd
from rueda import _ffi
from rueda._operation import Operation, struct_of
from rueda._requests import Request
from rueda._runtime import runtime

CALLS, STEPS, WARM_UPS, LAYERS = 2000, 60, 20, 160
LIMIT_US = 10.0  # of a blocking call of 4 bytes, named and in place, or an unnamed allgather


class Alone:
    """Persistent allreduces of torch tensors, started and waited for through the C ABI."""

    def __init__(self, tensors, name):
        self._tensors, self._requests = tensors, []
        for number, tensor in enumerate(tensors):
            shape, address = tuple(tensor.shape), tensor.data_ptr()
            operation = Operation(_ffi.ALLREDUCE, _ffi.FLOAT32, address, address, shape)
            pointer, error = ctypes.c_void_p(), _ffi.Error()
            struct = struct_of(operation, f"{name}.{number}")
            context, made = runtime.require_context(), ctypes.byref(pointer)
            code = _ffi.library.rueda_request_create(context, struct, 1, 0, made, ctypes.byref(error))
            if code != _ffi.OK:
                raise _ffi.exception(code, error)
            self._requests.append((Request(pointer.value), address))

    def run(self):
        for request, address in self._requests:
            _ffi.library.rueda_request_start(request.pointer, address, address, None, None)
        for request, _ in self._requests:
            _ffi.library.rueda_request_wait(request.pointer, -1.0, None)


def calls():
    """{what: (function, operations in it)}"""
    tensor, array = torch.ones(1), numpy.ones(1, dtype=numpy.float32)
    ten, pair = [torch.ones(1) for _ in range(10)], torch.ones(hvd.size())
    return {
        "the library alone": (Alone([torch.ones(1)], "cost.alone").run, 1),
        "torch allreduce_": (lambda: hvd.allreduce_(tensor, name="cost.in_place", op=hvd.Sum), 1),
        "torch allreduce": (lambda: hvd.allreduce(tensor, name="cost.new", op=hvd.Sum), 1),
        "torch allreduce, unnamed": (lambda: hvd.allreduce(tensor, op=hvd.Sum), 1),
        "torch async and synchronize": (
            lambda: hvd.synchronize(hvd.allreduce_async_(tensor, name="cost.async", op=hvd.Sum)), 1),
        "torch grouped, 10 tensors": (lambda: hvd.grouped_allreduce_(ten, name="cost.group", op=hvd.Sum), 10),
        "torch broadcast_": (lambda: hvd.broadcast_(tensor, 0, name="cost.root"), 1),
        "torch allgather": (lambda: hvd.allgather(tensor, name="cost.gather"), 1),
        "torch allgather, unnamed": (lambda: hvd.allgather(tensor), 1),
        "numpy allgather, unnamed": (lambda: rueda.allgather(array), 1),
        "torch reducescatter, unnamed": (lambda: hvd.reducescatter(pair, op=hvd.Sum), 1),
        "torch alltoall, unnamed": (lambda: hvd.alltoall(pair), 1),
        "numpy allreduce": (lambda: rueda.allreduce(array, name="cost.numpy", op=rueda.Sum), 1),
    }


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(16))

    def forward(self, x):
        return x * self.scale


def trainer(distributed):
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batch = torch.ones(16)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def steps():
    gradients = [torch.ones(16) for _ in range(LAYERS)]
    return {
        "plain": (trainer(False), 1),
        "distributed": (trainer(True), 1),
        "the library alone": (Alone(gradients, "cost.gradients").run, 1),
    }


def medians(kinds, rounds, count):
    """{what: microseconds of one operation}"""
    found = {what: [] for what in kinds}
    for _ in range(rounds):
        for what, (run, operations) in kinds.items():
            for _ in range(WARM_UPS):  # until its step plan runs again
                run()
            hvd.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                run()
            seconds = time.perf_counter() - begin
            found[what].append(1e6 * seconds / count / operations)
    return {what: statistics.median(times) for what, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= hvd.local_size():
        os.sched_setaffinity(0, {cores[hvd.local_rank()]})
    call = medians(calls(), args.rounds, CALLS)
    step = medians(steps(), args.rounds, STEPS)
    if hvd.rank() != 0:
        return
    print("a call of 4 bytes, microseconds")
    for what, us in call.items():
        print(f"  {what:30} {us:8.2f}")
    for what in ("torch allreduce_", "torch allgather, unnamed"):
        print(f"  aim: {what} at most {LIMIT_US:g}: {'reached' if call[what] <= LIMIT_US else 'NOT reached'}")
    python = step["distributed"] - step["plain"] - step["the library alone"]
    print(f"a step with {LAYERS} gradients of 64 bytes, microseconds")
    for what, us in step.items():
        print(f"  {what:30} {us:8.0f}")
    print(f"  Python of rueda, each gradient {python / LAYERS:8.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"call_us": call, "step_us": step, "per_gradient_us": python / LAYERS}, file, indent=1)


if __name__ == "__main__":
    main()
