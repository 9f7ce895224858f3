"""The rows of gpu_check that need PyTorch with CUDA: jobs of ranks, attention, training against DDP."""

import sys

from .rows import Row
from .table import FAILED, MEASURED, PASSED, reason


def _script(check, name):
    return [sys.executable, check.root / "tests" / "python" / name]


def check_jobs(check, row):
    """gpu_job.py; a section that fails is left out of the next try, so that those behind it are seen too."""
    for size in check.sizes:
        if check.lacks(row, check.machine.no_torch, "bin/ruedarun", "lib/librueda.so"):
            return
        skipped = []
        while True:
            program = [*_script(check, "gpu_job.py"), "--skip", ",".join(skipped)]
            status, output = check.ranks(size, program, row.seconds)
            lines = output.splitlines()
            begun = [line.split()[1] for line in lines if line.startswith("begin ")]
            for line in lines:
                if status == 0 and line.startswith("figure "):
                    check.add(row, MEASURED, line[len("figure "):], f"{row.what}, {check.shown(size)}")
            if status == 0 or not begun or begun[-1] in skipped:
                what = f"{row.what}, {check.shown(size)}: {', '.join(begun) or 'start'}"
                check.table.outcome(row.name, what, status, "" if status == 0 else output)
                break
            wrong = begun[-1]
            check.add(row, FAILED, reason(output), f"{row.what}, {check.shown(size)}: {wrong}")
            skipped.append(wrong)
            if check.run.left() < 20:
                break


def check_death(check, row):
    if check.lacks(row, check.machine.no_torch, "bin/ruedarun", "lib/librueda.so"):
        return
    status, output = check.ranks(max(2, min(check.sizes)), [*_script(check, "gpu_job.py"), "--only", "death"], row.seconds)
    heard = [line for line in output.splitlines() if " heard of it after " in line]
    check.add(row, PASSED if heard and status == 137 else FAILED, heard[0] if heard else output)


def check_groups(check, row):
    for size in check.sizes:
        if check.lacks(row, check.machine.no_torch, "bin/ruedarun", "lib/librueda.so"):
            return
        status, output = check.ranks(size, _script(check, "gpu_groups.py"), row.seconds)
        begun = [line.split()[1] for line in output.splitlines() if line.startswith("begin ")]
        what = f"{row.what}, {check.shown(size)}"
        check.table.outcome(row.name, what if status == 0 else f"{what}: {(begun or ['start'])[-1]}", status, "" if status == 0 else output)


def check_attention(check, row):
    if not check.lacks(row, check.machine.no_torch, "lib/librueda.so"):
        command = [*_script(check, "gpu_attention.py"), row.name.split("-")[1]]
        status, output = check.run(command, row.seconds, **check.environment)
        wrong = [line for line in output.splitlines() if line.startswith("WRONG")]
        for line in wrong[1:]:
            check.add(row, FAILED, line)
        check.table.outcome(row.name, row.what, status, wrong[0] if wrong else output)


def check_training(check, row):
    size = 2
    if not check.lacks(row, check.machine.no_torch, "bin/ruedarun", "lib/librueda.so"):
        command = [*_script(check, "gpu_training.py"), row.name]
        status, output = check.ranks(size, command, row.seconds)
        told = [line for line in output.splitlines() if " ms a step" in line]
        check.table.outcome(row.name, f"{row.what}, {check.shown(size)}", status, "\n".join(told) or reason(output))


JOBS = [
    Row("job", "PyTorch on CUDA", 240, check_jobs),
    Row("groups", "torch.distributed in ordered groups on CUDA, against the CPU", 120, check_groups),
    Row("attention-exact", "attention by every kernel of this machine, 1 and 4 virtual ranks, against float64", 240,
        check_attention),
    Row("attention-decode", "decode_attention, by libraries and PyTorch's operations, against float64", 90, check_attention),
    Row("attention-speed", "local attention adapter, causal 8k, bf16: 600 / 500 TFLOP/s", 120, check_attention),
    Row("attention-ring", "ring attention on 8 virtual ranks against one local call: 0.88 forward, 0.92 both", 240,
        check_attention),
    Row("death", "a rank killed in a collective: survivors raise within 10 s", 90, check_death),
]
TRAINING = [
    Row("resnet50", "ResNet-50 step against DDP with NCCL", 240, check_training),
    Row("gpt2", "GPT-2-small step against DDP with NCCL", 240, check_training),
]
