"""A rank of one cell: goes through the phases, checks every sum, and suffers the fault when its time has come.

The runner tells it the cell in MATRIX_CELL (JSON). What became of it is written to the cell's folder, one file per rank.
"""

import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

CELL = json.loads(os.environ["MATRIX_CELL"])
RANK, SIZE = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
ME = RANK == CELL["target_rank"]
FOLDER = CELL["folder"]
RANDOM = random.Random(CELL["seed"])
if CELL["transport"] == "mixed":
    os.environ["RUEDA_HOST_ID"] = f"matrix{RANK % 2}"

import numpy as np  # noqa: E402
import rueda as hvd  # noqa: E402

notes = []
held = []  # descriptors


def give_descriptors_back():
    """Before this program itself needs one."""
    while held:
        os.close(held.pop())


def told(name, **what):
    give_descriptors_back()
    path = os.path.join(FOLDER, f"{name}.{RANK}")
    with open(path + ".tmp", "w") as file:
        json.dump(what, file)
    os.rename(path + ".tmp", path)


# ---- faults


def stop_for(seconds):
    subprocess.Popen(
        [sys.executable, "-c", f"import os,time; time.sleep({seconds}); os.kill({os.getpid()}, 18)"], start_new_session=True
    )
    os.kill(os.getpid(), signal.SIGSTOP)


def starve():
    hogs = [subprocess.Popen([sys.executable, "-c", "import time\ne=time.time()+2\nwhile time.time()<e: pass"]) for _ in range(8)]
    for hog in hogs:
        hog.wait()


def run_out_of_memory():
    group = CELL["memory_group"]
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
    bytearray(1 << 30)  # touches every page
    raise SystemExit("1 GiB fitted into the control group")


def fill_shared_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    if not hvd.is_initialized():
        return  # init meets it
    try:
        hvd.empty(256 << 20, np.uint8)
        notes.append("256 MiB of shared memory fitted under the limit")
    except MemoryError as error:
        notes.append(f"refused: {error}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def use_up_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass


def fill_disk():
    """The timeline goes to a full disk: the job goes on."""
    if hvd.is_initialized():
        link = os.path.join(FOLDER, f"timeline{RANK}.json")
        os.symlink("/dev/full", link)
        try:
            hvd.start_timeline(link)
        except (ValueError, OSError) as error:
            notes.append(f"refused: {error}")
    else:
        os.environ["RUEDA_SUMMARY"] = "1"
        try:
            with open("/dev/full", "w") as file:
                file.write("x" * 100000)
        except OSError as error:
            notes.append(f"refused: {error}")


def reset_connections():
    """connect() to nowhere ends a connection with RST, whoever else holds the descriptor."""
    libc = ctypes.CDLL(None)
    nowhere = (ctypes.c_uint16 * 8)()
    for name in os.listdir("/proc/self/fd"):
        try:
            with open(f"/proc/self/fdinfo/{name}"):
                pass
            import socket

            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM:
                    libc.connect(copy.fileno(), nowhere, 16)
        except OSError:
            continue


def crash():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    ballast = bytearray(64 << 20)
    os.kill(os.getpid(), signal.SIGSEGV)
    return ballast


def leave(code):
    if threading.current_thread() is threading.main_thread():
        told("outcome", outcome="left")
        sys.exit(code)
    os._exit(code)


INJECT = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv_core": crash,
    "abort": os.abort,
    "exit_0": lambda: leave(0),
    "exit_1": lambda: leave(1),
    "stop_2s": lambda: stop_for(2),
    "stop_for_ever": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "starve": starve,
    "oom_kill": run_out_of_memory,
    "shm_full": fill_shared_memory,
    "no_descriptors": use_up_descriptors,
    "disk_full": fill_disk,
    "reset": reset_connections,
    "ctrl_c": lambda: None,  # the runner's, as those of links are
    "agent_killed": lambda: None,
}


def inject():
    told("now", at=time.monotonic())
    INJECT.get(CELL["fault"], lambda: None)()


def reached(phase, within=0.0):
    """The target suffers its fault here, or (within > 0) at a random moment of what follows."""
    if not ME or CELL["phase"] != phase:
        return
    if within == 0.0:
        inject()
        return

    def later():
        time.sleep(RANDOM.uniform(0, within))
        inject()

    threading.Thread(target=later, daemon=True).start()


# ---- the phases


def same(got, expected):
    if not np.array_equal(got, expected):
        told("outcome", outcome="wrong", text=f"{got[:4]} is not {expected[:4]}")
        os._exit(99)


def rank_sum(scale):
    return float(scale * SIZE * (SIZE + 1) // 2)


def work():
    big = np.full(2 << 20, float(RANK + 1), np.float32)
    for step in range(CELL["steps"]):
        last = step == 2  # the fault comes here; before it the steps are cached, behind it they go on
        if last:
            reached("negotiate")
        same(hvd.allreduce(np.full(100, float(RANK + 1)), op=hvd.Sum, name="negotiated"), np.full(100, rank_sum(1)))
        if last:
            reached("fuse", within=0.01)
        small = [hvd.allreduce_async(np.full(1000, float(RANK + 1)), op=hvd.Sum, name=f"small{i}") for i in range(64)]
        if last:
            reached("callback")
        for handle in small:
            same(hvd.synchronize(handle), np.full(1000, rank_sum(1)))
        if last:
            reached("collective", within=0.03)
        for _ in range(3):
            same(hvd.allreduce(big, op=hvd.Sum, name="big"), np.full(big.shape, rank_sum(1), np.float32))
        give_descriptors_back()
        with open(os.path.join(FOLDER, f"checkpoint.{RANK}.tmp"), "wb") as file:
            file.write(big.tobytes()[: 1 << 20])
            if last:
                reached("commit")
            file.flush()
            os.fsync(file.fileno())
        os.rename(os.path.join(FOLDER, f"checkpoint.{RANK}.tmp"), os.path.join(FOLDER, f"checkpoint.{RANK}"))
        if last:
            reached("state_sync", within=0.01)
        same(hvd.broadcast(big, 0, name="state"), np.ones(big.shape, np.float32))


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends survivors after a while
    try:
        reached("rendezvous")
        reached("init", within=0.02)
        hvd.init()
        work()
        hvd.shutdown()
    except KeyboardInterrupt:
        told("outcome", outcome="interrupted")
        return 130
    except Exception as error:  # noqa: BLE001
        told("outcome", outcome="raised", type=type(error).__name__, text=str(error), at=time.monotonic(), notes=notes)
        return 1
    told("outcome", outcome="finished", notes=notes)
    return 0


sys.exit(main())
