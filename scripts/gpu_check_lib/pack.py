"""A build in a folder that travels: programs without debug information, nothing that needs a package at run time."""

import os
import shutil
import subprocess
import sys

# Where a build has them, and where gpu_check looks. The library's file carries its version.
PROGRAMS = ["bin/ruedarun", "bin/gpu_kernels_check", "lib/librueda.so", "lib/librueda_cuda.so", "tests/cuda/cuda_library_test",
            "tests/cuda/gpu_speed"]
TARGETS = ["rueda", "ruedarun", "rueda_cuda_kernels", "gpu_kernels_check", "cuda_library_test", "gpu_speed"]
# What every machine has with a C++ program on it.
_COMMON = ("linux-vdso", "libstdc++", "libgcc_s", "libm.so", "libc.so", "libdl", "libpthread", "librt", "ld-linux", "librueda.so")


def pack(build, folder):
    """Copies what the checks need of a build; ends the program with the reason where that is not possible."""
    missing = [name for name in PROGRAMS if not (build / name).exists()]
    if missing:
        sys.exit(f"{build} has no {', '.join(missing)}: build there first (without --pack), with nvcc")
    total = 0
    for name in PROGRAMS:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile((build / name).resolve(), target)
        target.chmod(0o755)
        subprocess.run(["strip", str(target)], check=True)
        needed = subprocess.run(["ldd", str(target)], text=True, stdout=subprocess.PIPE, check=True).stdout.split("\n")
        strange = [line.split()[0] for line in needed if line.strip() and not any(word in line for word in _COMMON)]
        if strange:
            sys.exit(f"{name} needs {', '.join(strange)}, which another machine may not have")
        total += os.path.getsize(target)
    # Programs ask for the library by the name of its interface.
    shutil.copyfile(folder / "lib/librueda.so", folder / "lib/librueda.so.2")
    total += os.path.getsize(folder / "lib/librueda.so.2")
    print(f"{folder}: {total / 2**20:.0f} MiB. On the machine with the GPU, in this source tree:\n"
          f"  scripts/gpu_check --skip-build --build {folder}")
