"""Becomes a program that the kernel asks to stop (SIGTERM) when the process that started it ends.

    python until_parent_ends.py PARENT_PID PROGRAM ARGUMENTS...

Run by its path, with the standard library alone: nothing of rueda is imported here.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; outlives execve


def main():
    parent, program = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"cannot follow the parent process: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
