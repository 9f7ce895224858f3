"""What an initialised but idle framework costs a process that computes: peer_idle.py FRAMEWORK.

Row "compute": time of a fixed amount of matrix products with the framework idle; `ratio` to the mean of the same before it
was initialised and after it has left, all ranks computing at the same time. Row "switches": voluntary context switches per second of all threads while the process sleeps."""

import os
import sys
import time

import torch

import frameworks
from meeting import Meeting, print_row, state_of

IDLE_SECONDS = 2.0


def work(matrix, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        matrix @ matrix
    return time.perf_counter() - begin


def median_time(matrix, repeats, times=7):
    return sorted(work(matrix, repeats) for _ in range(times))[times // 2]


def voluntary_switches():
    """Thread id -> count."""
    counts = {}
    for thread in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/status" % thread, encoding="ascii") as status:
            for line in status:
                if line.startswith("voluntary_ctxt_switches"):
                    counts[thread] = int(line.split()[1])
    return counts


def from_environment(*names):
    """What the launcher says, whichever it is."""
    return int(next(os.environ[name] for name in names if name in os.environ))


def main():
    torch.set_num_threads(1)
    rank = from_environment("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
    size = from_environment("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE")
    cores = os.sched_getaffinity(0)
    meeting = Meeting(rank, size)
    matrix = torch.rand(256, 256)
    meeting.pin_to_core()
    ns = [meeting.one_way_ns()]
    work(matrix, 5)
    repeats = max(5, int(0.2 * 5 / work(matrix, 5)))  # 0.2 s, however fast its matrix library is

    def measure():
        meeting.barrier()
        seconds = median_time(matrix, repeats)
        meeting.barrier()
        return seconds

    before = measure()
    os.sched_setaffinity(0, cores)  # frameworks count cores when they start
    framework = frameworks.start(sys.argv[1])
    framework.allreduce(torch.ones(4), "warm")
    meeting.pin_to_core()
    beside = measure()
    first = voluntary_switches()
    time.sleep(IDLE_SECONDS)
    second = voluntary_switches()
    own = str(os.getpid())  # this thread's sleep is one of its own
    switches = sum(count - first.get(thread, 0) for thread, count in second.items() if thread != own)
    meeting.barrier()
    framework.leave()
    after = measure()
    ns.append(meeting.one_way_ns())
    ratio = meeting.worst(2 * beside / (before + after))
    switches = meeting.worst(switches)
    print_row(meeting, about=framework.about)
    print_row(meeting, case="idle:compute", op="idle", ratio=round(ratio, 4), us=round(beside * 1e6, 1), wrong=0, ns=ns,
              state=state_of(ns))
    print_row(meeting, case="idle:switches", op="idle", us=round(switches / IDLE_SECONDS, 2), wrong=0, ns=ns,
              state=state_of(ns))


main()
