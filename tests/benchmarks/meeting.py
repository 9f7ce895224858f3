"""The ranks' meeting and the timing loop for Python programs: the C++ ones' own barrier, machine check and binding to
cores (libbench_meeting.so), and the same rules (launcher/tools/bench/measure.h)."""

import ctypes
import json
import os
import time

KIB, MIB = 1 << 10, 1 << 20


class Meeting:
    """One rank's place at the file RUEDA_BENCH_MEETING. Every method is collective, except `put` and `slowest`."""

    def __init__(self, rank, size):
        self._library = ctypes.CDLL(os.environ["RUEDA_BENCH_LIBRARY"])
        for name in ("slowest", "one_way_ns"):
            getattr(self._library, "bench_meeting_" + name).restype = ctypes.c_double
        self._library.bench_meeting_open.restype = ctypes.c_void_p
        self.rank, self.size = rank, size
        path = os.environ["RUEDA_BENCH_MEETING"].encode()
        self._meeting = ctypes.c_void_p(self._library.bench_meeting_open(path, rank, size))
        if not self._meeting:
            raise RuntimeError("the ranks cannot meet")

    def barrier(self):
        self._library.bench_meeting_barrier(self._meeting)

    def agree(self, mine):
        return bool(self._library.bench_meeting_agree(self._meeting, int(bool(mine))))

    def put(self, index, value):
        self._library.bench_meeting_put(self._meeting, index, ctypes.c_double(value))

    def slowest(self, index):
        return self._library.bench_meeting_slowest(self._meeting, index)

    def one_way_ns(self):
        return self._library.bench_meeting_one_way_ns(self._meeting)

    def pin_to_core(self):
        self._library.bench_pin_to_core(self.rank)

    def worst(self, value):
        """The largest of all ranks' values, on every rank."""
        self.put(0, value)
        self.barrier()
        most = self.slowest(0)
        self.barrier()
        return most


def state_of(ns):
    """measure.h's state_of."""
    if min(ns) <= 0:
        return "none"
    return "NEAR" if max(ns) < 90 else "FAR" if min(ns) > 180 else "mixed"


def samples_of(meeting, run, dirty, warm_ups, iterations, seconds=None):
    """Microseconds of each timed run, the slowest rank's, sorted. `dirty` runs before each, outside the timer."""
    seconds = seconds or float(os.environ.get("RUEDA_BENCH_SECONDS", "1"))
    limit = int(os.environ.get("RUEDA_BENCH_ITERATIONS", "0"))
    if limit:
        iterations, warm_ups = min(limit, 1000), min(warm_ups, 4 + limit)
    fewest = min(iterations, 5)
    done, begin = -warm_ups, time.perf_counter()
    while True:
        late = time.perf_counter() - begin > seconds
        if meeting.agree(done >= iterations or (done >= fewest and late)):
            break
        if meeting.agree(done < -1 and late):
            done = -1
        if done == 0:
            begin = time.perf_counter()
        dirty()
        meeting.barrier()
        start = time.perf_counter_ns()
        run()
        end = time.perf_counter_ns()
        if done >= 0:
            meeting.put(done, (end - start) / 1e3)
        done += 1
    meeting.barrier()
    times = sorted(meeting.slowest(index) for index in range(done))
    meeting.barrier()
    return times


def figures(times):
    return {
        "us": round(times[len(times) // 2], 3),
        "p99_us": round(times[min(len(times) - 1, len(times) * 99 // 100)], 3),
        "iterations": len(times),
    }


def effort_of(size_in_bytes):
    """(warm-ups, iterations), as in C++."""
    if size_in_bytes <= 64 * KIB:
        return 30, 1000
    return (24, 40) if size_in_bytes <= 4 * MIB else (24, 7)


def print_row(meeting, **row):
    if meeting.rank == 0:
        print("ROW " + json.dumps(row), flush=True)
