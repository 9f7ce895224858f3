"""What this machine has: GPUs, driver, compiler, the Python that has PyTorch, the NCCL that it would load."""

import ctypes
import datetime
import json
import os
import platform
import shutil
import sys

_TORCH = """
import json, torch
found = {"torch": torch.__version__, "usable": torch.cuda.is_available(), "nccl": ""}
try: found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception: pass
maps = open("/proc/self/maps").read().split()
found["path"] = next((word for word in maps if "/libnccl.so" in word), "")
if found["usable"]: found["capability"] = "%d.%d" % torch.cuda.get_device_capability()
print(json.dumps(found))
"""


def driver():
    """(names of the GPUs, version of the driver's CUDA, why there are none)"""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return [], "", str(error)
    code, count, version = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if code != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return [], "", f"cuInit gives {code}"
    names = []
    for ordinal in range(count.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(128)
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(text, 128, device)
        names.append(text.value.decode())
    shown = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return names, shown, "" if names else "the driver shows no GPU"


class Machine:
    """no_gpu, no_torch: why not, or ""; nccl: its file, or ""."""

    def __init__(self, run):
        self.gpus, driver_version, self.no_gpu = driver()
        status, output = run([sys.executable, "-c", _TORCH], 120)
        found = {}
        try:
            found = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            pass
        self.no_torch = self.no_gpu
        if status != 0 or not found:
            self.no_torch = self.no_torch or f"{sys.executable} has no PyTorch"
        elif not found["usable"]:
            self.no_torch = self.no_torch or f"PyTorch {found['torch']} sees no GPU"
        self.nccl = os.environ.get("RUEDA_NCCL_LIBRARY") or found.get("path", "")
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        release = [line for line in run([nvcc, "--version"], 30)[1].splitlines() if "release" in line] if nvcc else []
        self.nvcc = nvcc
        self.nccl_version = found.get("nccl", "")
        self.about = {
            "date": str(datetime.date.today()),
            "GPUs": ", ".join(self.gpus) or f"none ({self.no_gpu})",
            "driver": f"CUDA {driver_version}" if driver_version else "none",
            "software": f"Python {platform.python_version()}, PyTorch {found.get('torch', 'none')}, NCCL "
                        f"{self.nccl_version or 'none'}, nvcc {release[0].split('release')[1].strip() if release else 'none'}",
        }

    def shares(self, ranks):
        """Whether so many ranks are more than one on some GPU."""
        return ranks > len(self.gpus)
