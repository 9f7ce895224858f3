"""The rows of gpu_check: programs that need no framework, cheapest first (jobs.py has those of PyTorch)."""

import os
import re
import shutil
import sys
from typing import NamedTuple

from .table import FAILED, MEASURED, NOT_RUN, PASSED


class Row(NamedTuple):
    name: str
    what: str
    seconds: int  # at most, for each of its programs
    call: object  # (Check, Row)


class Check:
    """What rows are given. folder: of the build; sizes: numbers of ranks."""

    def __init__(self, run, machine, table, root, folder, sizes):
        self.run, self.machine, self.table, self.root, self.folder, self.sizes = run, machine, table, root, folder, sizes
        self.environment = {"PYTHONPATH": str(root / "bindings" / "python"), "RUEDA_LIBRARY": str(folder / "lib" / "librueda.so")}

    def add(self, row, result, detail="", what=None):
        self.table.add(row.name, what or row.what, result, detail)

    def lacks(self, row, why, *files):
        """Adds that the row is not run, where there is a reason or a file is missing."""
        if not why:
            why = ", ".join(f"there is no {name}" for name in files if not (self.folder / name).exists())
        if why:
            self.add(row, NOT_RUN, why)
        return bool(why)

    def ranks(self, size, program, seconds, **variables):
        """(status, output without the marks of ranks) of a job. More ranks than GPUs share them."""
        if self.machine.shares(size):
            # One NCCL counts processes of one host on one GPU as a mistake, unless it is told otherwise (2.30), or that
            # each is a host of its own; programs set NCCL_HOSTID by their rank.
            variables = {"RUEDA_ALLOW_SHARED_GPU": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "RUEDA_CHECK_SHARES_GPU": "1",
                         "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", **variables}
        command = [self.folder / "bin" / "ruedarun", "-np", size, *program]
        status, output = self.run(command, seconds, **{**self.environment, **variables})
        return status, re.sub(r"^\[\d+\]<\w+>: ?", "", output, flags=re.MULTILINE)

    def shown(self, size):
        return f"{size} rank{'s' if size > 1 else ''}{' (shared GPU)' if self.machine.shares(size) else ''}"


def check_driver(check, row):
    if not check.lacks(row, check.machine.no_gpu, "tests/cuda/cuda_library_test"):
        check.table.outcome(row.name, row.what, *check.run([check.folder / "tests/cuda/cuda_library_test", "[gpu]"], row.seconds))


def check_nccl(check, row):
    # Without a GPU nobody has put NCCL there.
    if check.lacks(row, "" if check.machine.nccl else check.machine.no_gpu, "tests/cuda/cuda_library_test"):
        return
    program = [check.folder / "tests/cuda/cuda_library_test", "[real]"]
    status, output = check.run(program, row.seconds, RUEDA_NCCL_LIBRARY=check.machine.nccl or None)
    found = [line.strip() for line in output.splitlines() if line.strip().startswith("NCCL ")]
    if status == 0 and found:
        check.add(row, PASSED, found[0])
    else:
        check.table.outcome(row.name, row.what, status or 1, output)


def check_kernels(check, row):
    program, plugin = "bin/gpu_kernels_check", "lib/librueda_cuda.so"
    if check.lacks(row, check.machine.no_gpu, program, plugin):
        return
    status, output = check.run([check.folder / program, check.folder / plugin], row.seconds)
    check.table.outcome(row.name, row.what, status, output)
    for line in output.splitlines():
        if " GB/s" in line:
            enough = "of the copy" not in line or float(line.split(" %")[0].split()[-1]) >= 80
            check.add(row, MEASURED if enough else FAILED, line, "bandwidth, 102 MB in 161 tensors: 80 % of a copy")


def check_speed(check, row):
    for size in check.sizes:
        if size > 4 or check.lacks(row, check.machine.no_gpu, "tests/cuda/gpu_speed"):
            continue
        what = f"{row.what}, {check.shown(size)}"
        folders = [str(check.folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]  # the driver's, too
        libraries = {"LD_LIBRARY_PATH": ":".join(folders), "RUEDA_NCCL_LIBRARY": check.machine.nccl or None}
        status, output = check.ranks(size, [check.folder / "tests/cuda/gpu_speed"], row.seconds, **libraries)
        lines = [line for line in output.splitlines() if " us bare" in line or " us to start" in line]
        for line in lines:
            check.add(row, FAILED if "TOO SLOW" in line or "not planned" in line else PASSED, line.split(": ", 1)[-1], what)
        if status != 0 or not lines:
            check.table.outcome(row.name, what, status or 1, output)


def check_sanitizer(check, row):
    program, plugin = "bin/gpu_kernels_check", "lib/librueda_cuda.so"
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    why = check.machine.no_gpu or ("" if tool else "compute-sanitizer is not in PATH")
    if check.lacks(row, why, program, plugin):
        return
    for name in ("memcheck", "racecheck", "initcheck"):
        command = [tool, "--tool", name, "--error-exitcode", "9", check.folder / program, check.folder / plugin, "--short"]
        check.table.outcome(row.name, f"{row.what}: {name}", *check.run(command, row.seconds))
    script = check.root / "tests" / "python" / "gpu_attention.py"
    if check.machine.no_torch:
        check.add(row, NOT_RUN, check.machine.no_torch, "the block kernel of attention under compute-sanitizer")
        return
    command = [tool, "--error-exitcode", "9", sys.executable, script, "own"]
    check.table.outcome(row.name, "the block kernel of attention under compute-sanitizer",
                        *check.run(command, row.seconds, **check.environment))


def check_compiler(check, row):
    """That this machine's nvcc takes the kernels too, for its own GPU."""
    if check.machine.nvcc is None:
        check.add(row, NOT_RUN, "there is no nvcc")
        return
    for source in ("collectives/cuda/kernels/plugin.cu", "attention/cuda/attention.cu"):
        command = [check.machine.nvcc, "-std=c++17", "-O3", "-c", "-I.", "-arch=native", "-Xcompiler", "-fPIC", "-o", "/dev/null",
                   check.root / source]
        status, output = check.run(command, row.seconds)
        check.table.outcome(row.name, f"{row.what}: {source}", status, "" if status == 0 else output)


FIRST = [
    Row("driver", "the real driver: devices, UUIDs, contexts, streams, events, captures", 60, check_driver),
    Row("nccl", "NCCL is found and has what is needed", 60, check_nccl),
    Row("kernels", "kernels against the host's arithmetic", 120, check_kernels),
]
SPEED = [Row("speed", "allreduce through rueda against bare NCCL: 2 % above 1 MB, 5 us below", 120, check_speed)]
LAST = [
    Row("sanitizer", "the kernels under compute-sanitizer", 300, check_sanitizer),
    Row("compiler", "this machine's nvcc takes the kernels", 300, check_compiler),
]
