"""Blocking allreduces of torch tensors: peer_torch.py FRAMEWORK OPERATION:DTYPE:MEMORY:BYTES...

OPERATION is allreduce (the result is a new tensor where the framework has that) or allreduce_ (in place). Prints "ROW
{json}" lines on rank 0."""

import sys

import torch

import frameworks
from meeting import Meeting, effort_of, figures, print_row, samples_of, state_of

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def measure(framework, meeting, case):
    operation, dtype_name, memory, size_text = case.split(":")
    size = bytes_of(size_text)
    dtype = DTYPES[dtype_name]
    row = {"case": case, "op": operation, "dtype": dtype_name, "memory": memory, "bytes": size}
    tensor = torch.zeros(size // torch.zeros(0, dtype=dtype).element_size(), dtype=dtype)
    call = framework.allreduce_in_place if operation == "allreduce_" else framework.allreduce
    name = "bench." + case
    try:
        call(tensor, name)
        failure = ""
    except (RuntimeError, ValueError, TypeError) as error:  # a dtype that it does not have: the same on all ranks
        failure = str(error).splitlines()[0]
    if meeting.worst(1 if failure else 0):
        return {**row, "unavailable": failure or "not on every rank"}
    before = meeting.one_way_ns()
    times = samples_of(meeting, lambda: call(tensor, name), lambda: tensor.fill_(1 + meeting.rank), *effort_of(size))
    ns = [before, meeting.one_way_ns()]
    pattern = torch.arange(tensor.numel(), dtype=torch.int64) % 4
    tensor.copy_((pattern + meeting.rank) % 4)
    result = call(tensor, name)
    expected = sum((pattern + rank) % 4 for rank in range(meeting.size)).to(dtype)
    wrong = meeting.worst(int((result != expected).sum()))
    return {**row, "manner": "call", **figures(times), "wrong": int(wrong), "ns": ns, "state": state_of(ns)}


def main():
    framework = frameworks.start(sys.argv[1])
    meeting = Meeting(framework.rank, framework.size)
    meeting.pin_to_core()
    print_row(meeting, about=framework.about)
    for case in sys.argv[2:]:
        print_row(meeting, **measure(framework, meeting, case))
    meeting.barrier()
    framework.leave()


main()
