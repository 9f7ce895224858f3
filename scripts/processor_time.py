"""Processor time of a job's launchers, for the scripts that measure what watching a job costs."""

import contextlib
import os
import pathlib
import time


def processor_seconds(pid):
    """Of all threads that live; a thread that has ended takes its time with it."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(thread.read_text().split()[0])
    return total * 1e-9


def launchers(root):
    """ruedarun's processes that are no rank: the started one and those below it that run its program."""
    program = os.path.realpath(f"/proc/{root}/exe")
    found, left = [], [root]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):
            if os.path.realpath(f"/proc/{pid}/exe") == program:
                found.append(pid)
                for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                    left += map(int, children.read_text().split())
    return found


def over(pids, seconds):
    """Processor seconds of each process per second, over so many."""
    begun, before = time.monotonic(), [processor_seconds(pid) for pid in pids]
    time.sleep(seconds)
    passed = time.monotonic() - begun
    return [(processor_seconds(pid) - then) / passed for pid, then in zip(pids, before)]
